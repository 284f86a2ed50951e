package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/internal/testenv"
	"github.com/stretchr/testify/require"
)

func logTo(l *lines) *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// free returns an address nobody listens on.
func free(t *testing.T) string { return testenv.FreePort(t).String() }

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 30 * time.Second} // each asks anew
	r, err := c.Get(url)                                                                              //nolint:noctx // a test's own
	if err != nil {
		return 0, err.Error()
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	return r.StatusCode, string(b)
}

// site is a web server that can be made sick.
func site(t *testing.T) (address string, sick *atomic.Bool) {
	t.Helper()
	sick = new(atomic.Bool)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if sick.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String(), sick
}

func TestDaemonTells(t *testing.T) {
	web, sick := site(t)
	page, asked, told := free(t), free(t), free(t)
	track := filepath.Join(t.TempDir(), "track")
	text := fmt.Sprintf(`version: 1
listen: %s
checks:
  web: {method: http, target: "%s", interval: 50ms, timeout: 10s, fall: 1}
policies: {shop: web, closed: NOT web}
agents:
  - {listen: "%s"}
  - {listen: "%s", of: closed}
files:
  - {path: "%s", of: shop, down: 7}
`, page, web, asked, told, track)
	name := write(t, text)
	log := &lines{most: 100}
	d := start(t, name, log)
	eventually(t, "up", func() bool { s, _ := get(t, "http://"+page+"/up/shop"); return s == 200 })

	require.Equal(t, "up\n", ask(t, asked, "shop\n"))
	require.Equal(t, "up\n", ask(t, asked, "web\n"))
	require.Equal(t, "", ask(t, asked, "nobody\n"))
	require.Contains(t, ask(t, told, ""), "down #closed is down: web up")
	eventually(t, "the file", func() bool { return content(track) == "0\n" })

	sick.Store(true)
	eventually(t, "down", func() bool { s, _ := get(t, "http://"+page+"/up/shop"); return s == 503 })
	require.Contains(t, ask(t, asked, "shop\n"), "down #shop is down: web down")
	require.Equal(t, "up\n", ask(t, told, "whatever haproxy sends\n"))
	eventually(t, "the file", func() bool { return content(track) == "7\n" })

	status, body := get(t, "http://"+page+"/up/nobody")
	require.Equal(t, 404, status, body)
	require.Equal(t, "there is no check or policy \"nobody\"\n", body)
	_, body = get(t, "http://"+page+"/")
	require.Contains(t, body, `<tr class="down"><td>shop<td>down`)
	_, body = get(t, "http://"+page+"/status.json")
	var rows []row
	require.NoError(t, json.Unmarshal([]byte(body), &rows))
	require.Equal(t, []string{"closed", "shop", "web"}, []string{rows[0].Name, rows[1].Name, rows[2].Name})
	require.Contains(t, rows[2].Why, "503")
	_, body = get(t, "http://"+page+"/metrics")
	requireExposition(t, body)
	require.Contains(t, body, "healthd_up{name=\"shop\"} 0\n")
	require.Contains(t, body, "healthd_up{name=\"closed\"} 1\n")
	require.Contains(t, body, "healthd_checks 1\n")

	// A wrong file changes nothing.
	replaceFile(t, name, strings.Replace(text, "{shop: web,", "{shop: wob,", 1))
	eventually(t, "the fault", func() bool {
		return strings.Contains(strings.Join(log.last(), "\n"), "the old configuration stays in force")
	})
	require.Equal(t, "up\n", ask(t, told, ""))
	// A right one takes over, keeps what stays, and opens and closes what changed.
	other, elsewhere := site2(t), free(t)
	replaceFile(t, name, strings.NewReplacer("{shop: web,", "{shop: web OR other,", "policies:", fmt.Sprintf("  other: {method: http, target: %q, interval: 50ms, timeout: 10s}\npolicies:", other), asked, elsewhere).Replace(text))
	eventually(t, "the new policy", func() bool { s, _ := get(t, "http://"+page+"/up/shop"); return s == 200 })
	require.Equal(t, "up\n", ask(t, elsewhere, "other\n"))
	_, err := net.DialTimeout("tcp", asked, time.Second)
	require.Error(t, err, "the old address is closed")
	s, ok := d.monitor.Status("web")
	require.True(t, ok)
	require.Equal(t, healthcheck.Failed, s.State, "what stays keeps its state")
	_, body = get(t, "http://"+page+"/metrics")
	require.Contains(t, body, "healthd_reloads_refused_total 1\n")
}

// An answer that is under way while its address goes does not hold up the reload.
func TestReloadWhileAnswering(t *testing.T) {
	web, _ := site(t)
	d, err := newDaemon(write(t, fmt.Sprintf("version: 1\nchecks:\n  web: {method: http, target: %q}\n", web)), logTo(&lines{most: 10}))
	require.NoError(t, err)
	closed := false
	d.ears["agent gone"] = &ear{close: func() {
		_, _, closed, _ = d.ask("web")
	}}
	done := make(chan error, 1)
	go func() { done <- d.apply(t.Context(), true) }()
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-time.After(30 * time.Second):
		t.Fatal("the reload hangs")
	}
	require.True(t, closed)
	require.Empty(t, d.ears)
}

func site2(t *testing.T) string {
	t.Helper()
	address, _ := site(t)
	return address
}

func replaceFile(t *testing.T, name, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(name+".new", []byte(text), 0o600))
	require.NoError(t, os.Rename(name+".new", name))
}

func content(name string) string {
	b, _ := os.ReadFile(name)
	return string(b)
}

func ask(t *testing.T, address, line string) string {
	t.Helper()
	c, err := net.Dial("tcp", address)
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.SetDeadline(time.Now().Add(30*time.Second)))
	_, err = io.WriteString(c, line)
	require.NoError(t, err)
	b, err := io.ReadAll(c)
	require.NoError(t, err)
	return string(b)
}

// requireExposition holds the metrics to the text format: every sample after its family's HELP and TYPE, once.
func requireExposition(t *testing.T, text string) {
	t.Helper()
	sample := regexp.MustCompile(`^([a-z_]+)(\{name="[^"]*"\})? \S+$`)
	seen, family := map[string]bool{}, ""
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if rest, ok := strings.CutPrefix(line, "# TYPE "); ok {
			family = strings.Fields(rest)[0]
			require.False(t, seen["type "+family], family)
			seen["type "+family] = true
			continue
		}
		if strings.HasPrefix(line, "# HELP ") {
			continue
		}
		m := sample.FindStringSubmatch(line)
		require.NotNil(t, m, line)
		require.Equal(t, family, m[1])
		require.False(t, seen[m[1]+m[2]], line)
		seen[m[1]+m[2]] = true
	}
	require.NotEmpty(t, seen)
}

// Where the output is no terminal, there is a table after every change, without escape sequences, and the log goes to standard error.
func TestTableOfChanges(t *testing.T) {
	web, sick := site(t)
	out, log := &lines{most: 1000}, &lines{most: 1000}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- runFile(ctx, write(t, fmt.Sprintf("version: 1\nchecks: {web: {method: http, target: %q, interval: 50ms, timeout: 10s, fall: 1}}\n", web)), true, true, out, log)
	}()
	has := func(l *lines, want string) func() bool {
		return func() bool { return strings.Contains(strings.Join(l.last(), "\n"), want) }
	}
	eventually(t, "up", has(out, "\nweb   up  "))
	sick.Store(true)
	eventually(t, "down", has(out, "\nweb   down  "))
	eventually(t, "the log", has(log, `"msg":"check changed","check":"web"`))
	cancel()
	require.NoError(t, <-done)
	require.NotContains(t, strings.Join(out.last(), "\n"), "\x1b")
	// Every line of -log-json is an object.
	for _, line := range log.last() {
		require.True(t, json.Valid([]byte(line)), line)
	}
}

// The purpose of an address changes while it is in use, and a connection finds somebody at any time.
func TestAddressChangesItsPurpose(t *testing.T) {
	web, _ := site(t)
	at := testenv.FreePort(t).String()
	text := fmt.Sprintf("version: 1\nchecks:\n  web: {method: http, target: %q, interval: 50ms, timeout: 10s}\npolicies: {shop: web, closed: NOT web}\n", web)
	name := write(t, text+fmt.Sprintf("agents: [{listen: %q, of: shop}]\n", at))
	log := &lines{most: 100}
	start(t, name, log)
	eventually(t, "up", func() bool { return askMaybe(at) == "up\n" })
	replaceFile(t, name, text+fmt.Sprintf("agents: [{listen: %q, of: closed}]\n", at))
	eventually(t, "another policy", func() bool {
		answer := askMaybe(at)
		require.NotEmpty(t, answer)
		return strings.HasPrefix(answer, "down #closed is down")
	})
	replaceFile(t, name, text+fmt.Sprintf("listen: %q\n", at))
	eventually(t, "a status page", func() bool { s, _ := get(t, "http://"+at+"/up/shop"); return s == 200 })
	require.NotContains(t, strings.Join(log.last(), "\n"), "stays in force")
}

// askMaybe is what an agent answers; "" if it cannot be asked.
func askMaybe(address string) string {
	c, err := net.Dial("tcp", address)
	if err != nil {
		return ""
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	b, _ := io.ReadAll(c)
	return string(b)
}

// A file that is there stays as it is while nobody knows; one that is not there says down.
func TestFileWhileUnknown(t *testing.T) {
	f := file{Path: filepath.Join(t.TempDir(), "f")}
	require.NoError(t, f.write(healthcheck.IsUnknown))
	require.Equal(t, "1\n", content(f.Path))
	require.NoError(t, f.write(healthcheck.IsUp))
	require.Equal(t, "0\n", content(f.Path))
	require.NoError(t, f.write(healthcheck.IsUnknown))
	require.Equal(t, "0\n", content(f.Path))
	f.Path = filepath.Join(f.Path, "x")
	require.Error(t, f.write(healthcheck.IsUp))
}

func TestRunCommand(t *testing.T) {
	status, _, errs := run(t, "run", write(t, "version: 1\nlisten: 192.0.2.1:1\nchecks: {}\n"))
	require.Equal(t, 1, status)
	require.Contains(t, errs, "listen on 192.0.2.1:1")
	status, _, errs = run(t, "run", "/no/such")
	require.Equal(t, 1, status)
	require.Contains(t, errs, "/no/such")
}
