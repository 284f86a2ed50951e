package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/lbprim/lbprim/examples/internal/cli"
	"github.com/lbprim/lbprim/examples/internal/conf"
	"github.com/lbprim/lbprim/healthcheck"
)

// exit turns a truth into the exit status for scripts; plugin has it as monitoring plug-ins have it.
func exit(t healthcheck.Truth, plugin bool) error {
	switch {
	case t == healthcheck.IsUp:
		return nil
	case t == healthcheck.IsUnknown:
		return &cli.Status{Code: 3}
	case plugin:
		return &cli.Status{Code: 2}
	}
	return &cli.Status{Code: 1}
}

// probeFlags are the options of probe.
type probeFlags struct{ packets, quiet, json, plugin bool }

func probeCommand() cli.Command {
	return cli.Command{
		Name: "probe", Args: "METHOD TARGET [KEY=VALUE ...]", Least: 2, Most: -1, Summary: "make one probe now and show what was sent and seen",
		Text: `Methods and their keys are listed by healthd methods. Such as

  healthd probe smtp mail.example:25
  healthd probe http 10.0.0.1:80 path=/health status=[200,204]
  healthd probe imap4 10.0.0.1:993 tls=true server-name=mail.example verify=true
  healthd probe icmp 2001:db8::1`,
		Flags: func(f *flag.FlagSet) cli.Run {
			var o probeFlags
			f.BoolVar(&o.packets, "packets", false, "show the packets, too")
			f.BoolVar(&o.quiet, "q", false, "verdict only")
			f.BoolVar(&o.json, "json", false, "verdict as JSON")
			f.BoolVar(&o.plugin, "plugin", false, "exit status as of monitoring plug-ins")
			return func(ctx context.Context, std cli.IO, args []string) error { return probeOnce(ctx, o, args, std.Out) }
		},
	}
}

func probeOnce(ctx context.Context, o probeFlags, rest []string, out io.Writer) error {
	c, err := fromWords(rest)
	if err != nil {
		return err
	}
	target, err := c.Target.resolve(ctx)
	if err != nil {
		return &cli.Status{Code: 3, Err: err}
	}
	trace := io.Discard
	if !o.quiet && !o.json {
		trace = out
	}
	spy := newTracer(trace)
	spy.decode = decoder(c)
	if c.Target.String() != c.targetText(target.Addr().String()) {
		spy.say("%s is %v", c.Target.host, target.Addr())
	}
	p, err := c.prober(spy)
	if err != nil {
		return cli.Usage("%v", err)
	}
	own := c.Method == healthcheck.ICMP || c.Method == healthcheck.TFTP || c.HalfOpen
	stop := func() {}
	if (own || o.packets) && trace != io.Discard {
		if end, err := spy.sniff(target); err != nil {
			spy.say("! %v", err)
		} else {
			stop = end
		}
	}
	if c.Method == healthcheck.Command {
		spy.say("run %s %s", c.Command, strings.Join(c.Args, " "))
	}
	if c.Timeout == 0 {
		c.Timeout = 5 * time.Second
	}
	start := time.Now()
	timed, cancel := context.WithTimeout(ctx, c.Timeout)
	r := p.Probe(timed, target)
	cancel()
	stop()
	if r.Latency == 0 {
		r.Latency = time.Since(start)
	}
	if o.json {
		err = json.NewEncoder(out).Encode(verdictOf(r))
	} else {
		_, err = fmt.Fprintln(out, verdictLine(r))
	}
	return errors.Join(err, exit(truthOf(r.Verdict), o.plugin))
}

// targetText is the target as it would be given with another host.
func (c *check) targetText(host string) string { return endpoint{host, c.Target.port}.String() }

func truthOf(v healthcheck.Verdict) healthcheck.Truth {
	switch {
	case v.OK():
		return healthcheck.IsUp
	case v == healthcheck.Fail:
		return healthcheck.IsDown
	}
	return healthcheck.IsUnknown
}

func verdictLine(r healthcheck.Result) string {
	text := fmt.Sprintf("%v in %v", r.Verdict, r.Latency.Round(10*time.Microsecond))
	if r.Err != nil {
		text += ": " + r.Err.Error()
	}
	if r.Note != "" {
		text += " (" + r.Note + ")"
	}
	if !r.NotAfter.IsZero() {
		text += "; certificate until " + r.NotAfter.UTC().Format(time.DateOnly)
	}
	if a := r.Agent; a != nil {
		text += fmt.Sprintf("; agent: %+v", *a)
	}
	return text
}

// verdict is the JSON form of a result.
type verdict struct {
	Verdict  healthcheck.Verdict      `json:"verdict"`
	Latency  float64                  `json:"latencySeconds"`
	Error    string                   `json:"error,omitempty"`
	Note     string                   `json:"note,omitempty"`
	NotAfter time.Time                `json:"notAfter,omitzero"`
	Agent    *healthcheck.AgentReport `json:"agent,omitempty"`
}

func verdictOf(r healthcheck.Result) verdict {
	v := verdict{Verdict: r.Verdict, Latency: r.Latency.Seconds(), Note: r.Note, NotAfter: r.NotAfter, Agent: r.Agent}
	if r.Err != nil {
		v.Error = r.Err.Error()
	}
	return v
}

// fromWords reads a check from a method, a target and key=value. The values are YAML, so that they mean what they
// mean in the file.
func fromWords(words []string) (*check, error) {
	b := fmt.Appendf(nil, "method: %q\ntarget: %q\n", words[0], words[1])
	for _, w := range words[2:] {
		k, v, ok := strings.Cut(w, "=")
		if !ok {
			return nil, cli.Usage("%q: want key=value; healthd methods lists the keys", w)
		}
		if v == "" || strings.ContainsAny(v[:1], "*&!|>%@`") {
			v = fmt.Sprintf("%q", v)
		}
		b = fmt.Appendf(b, "%s: %s\n", k, v)
	}
	c := &check{}
	f, err := conf.Decode(b, c)
	if err == nil {
		err = c.settle()
	}
	if err == nil {
		for _, err := range c.faults("probe") {
			f.Add("", "%v", err)
		}
		err = f.Err()
	}
	if err != nil {
		// Lines and columns mean nothing here.
		var texts []string
		var faults interface{ Unwrap() []error }
		if errors.As(err, &faults) {
			for _, e := range faults.Unwrap() {
				text := e.Error()
				var fault *conf.Fault
				if errors.As(e, &fault) {
					text = strings.TrimPrefix(fault.Path+": "+fault.Text, ": ")
				}
				texts = append(texts, text)
			}
		}
		return nil, cli.Usage("%s", strings.Join(texts, "\n  "))
	}
	return c, nil
}

func methods(out io.Writer) error {
	for m := healthcheck.ICMP; ; m++ {
		name, err := m.MarshalText()
		if err != nil {
			return nil //nolint:nilerr // that was the last
		}
		var keys []string
		t := reflect.TypeFor[check]()
		for i := range t.NumField() {
			f := t.Field(i)
			if slices.Contains(strings.Fields(f.Tag.Get("for")), m.String()) {
				keys = append(keys, f.Tag.Get("yaml"))
			}
		}
		if _, err := fmt.Fprintf(out, "%-13s %s\n", name, strings.Join(keys, " ")); err != nil {
			return err
		}
	}
}
