package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html/template"
	"net/http"
	"strings"
	"time"

	"github.com/lbprim/lbprim/healthcheck"
)

// handler serves the page, JSON, Prometheus, and one status for each name.
func (d *daemon) handler() http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		var b bytes.Buffer
		if err := page.Execute(&b, map[string]any{"Rows": d.rows(), "Now": time.Now(), "File": d.file}); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write(b.Bytes())
	})
	m.HandleFunc("GET /status.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(d.rows())
	})
	m.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		_, _ = w.Write(d.metrics())
	})
	m.HandleFunc("GET /up/{name}", func(w http.ResponseWriter, r *http.Request) {
		t, why, known, _ := d.ask(r.PathValue("name"))
		switch {
		case !known:
			http.Error(w, fmt.Sprintf("there is no check or policy %q", r.PathValue("name")), http.StatusNotFound)
			return
		case t != healthcheck.IsUp:
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		fmt.Fprintf(w, "%v %s\n", t, why)
	})
	return m
}

// metrics is the text exposition format of Prometheus.
func (d *daemon) metrics() []byte {
	var b bytes.Buffer
	rows := d.rows()
	family := func(name, kind, help string, value func(row) (float64, bool)) {
		fmt.Fprintf(&b, "# HELP healthd_%s %s\n# TYPE healthd_%s %s\n", name, help, name, kind)
		for _, r := range rows {
			if v, ok := value(r); ok {
				fmt.Fprintf(&b, "healthd_%s{name=\"%s\"} %v\n", name, label(r.Name), v)
			}
		}
	}
	family("up", "gauge", "1 while a check or policy is up, 0 while it is down; absent while unknown.", func(r row) (float64, bool) {
		return map[bool]float64{true: 1}[r.Is == healthcheck.IsUp], r.Is != healthcheck.IsUnknown
	})
	family("since_seconds", "gauge", "Time of the last change, in seconds since 1970.", func(r row) (float64, bool) {
		return float64(r.Since.UnixMilli()) / 1000, !r.Since.IsZero()
	})
	family("probes_total", "counter", "Probes made.", func(r row) (float64, bool) { return float64(r.Probes), !r.Policy })
	family("probe_failures_total", "counter", "Probes that failed.", func(r row) (float64, bool) { return float64(r.Failed), !r.Policy })
	family("latency_seconds", "gauge", "How long the last probe that passed took.", func(r row) (float64, bool) { return r.Seconds, r.Latency > 0 })
	family("certificate_expiry_seconds", "gauge", "When the certificate last seen ends, in seconds since 1970.", func(r row) (float64, bool) {
		return float64(r.Expires.Unix()), !r.Expires.IsZero()
	})
	s := d.monitor.Stats()
	d.mu.Lock()
	reloads, refused := d.reloads, d.refused
	d.mu.Unlock()
	for _, x := range []struct {
		name, kind, help string
		value            any
	}{
		{"checks", "gauge", "Checks configured.", s.Checks},
		{"probes_in_flight", "gauge", "Probes running.", s.InFlight},
		{"overruns_total", "counter", "Probes that did not return in time.", s.Overruns},
		{"reloads_total", "counter", "Attempts to reload the file.", reloads},
		{"reloads_refused_total", "counter", "Attempts that changed nothing since the file is wrong.", refused},
	} {
		fmt.Fprintf(&b, "# HELP healthd_%s %s\n# TYPE healthd_%s %s\nhealthd_%s %v\n", x.name, x.help, x.name, x.kind, x.name, x.value)
	}
	return b.Bytes()
}

func label(s string) string {
	return strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(s)
}

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"age": func(now, t time.Time) string {
		if t.IsZero() {
			return ""
		}
		return now.Sub(t).Round(time.Second).String()
	},
	"short": func(d time.Duration) string {
		if d == 0 {
			return ""
		}
		return d.Round(10 * time.Microsecond).String()
	},
}).Parse(`<!DOCTYPE html>
<html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="2"><title>healthd</title>
<style>
body{font:15px/1.4 system-ui,sans-serif;margin:2em}table{border-collapse:collapse}td,th{padding:.3em .8em;text-align:left;border-bottom:1px solid #8884}
.up td:nth-child(2){color:#080}.down td:nth-child(2){color:#c00;font-weight:bold}.unknown td:nth-child(2){color:#a60}
@media(prefers-color-scheme:dark){body{background:#111;color:#ddd}.up td:nth-child(2){color:#5c5}.down td:nth-child(2){color:#f66}}
</style>
<h1>{{.File}}</h1>
<table><tr><th>name<th>is<th>state<th>method<th>target<th>for<th>latency<th>probes<th>failed<th>why</tr>
{{range .Rows}}<tr class="{{.Is}}"><td>{{.Name}}<td>{{.Is}}<td>{{.State}}<td>{{if .Policy}}policy{{else}}{{.Method}}{{end}}<td>{{.Target}}<td>{{age $.Now .Since}}<td>{{short .Latency}}<td>{{.Probes}}<td>{{.Failed}}<td>{{.Why}}</tr>
{{end}}</table>
<p><a href="status.json">JSON</a> · <a href="metrics">Prometheus</a></p>
</html>
`))
