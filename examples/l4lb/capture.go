package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"time"

	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/examples/internal/cli"
)

// watchParams choose packets that are captured or traced.
var watchParams = []param{
	{"service", "Only packets of this service."}, {"node", "Only packets to and from this node, with its farm."}, {"client", "Client's address, network, or address and port, on either side."},
	{"vip", "Virtual address, network, or address and port, on either side."}, {"protocol", "tcp, udp, icmp or a number."}, {"dropped", "1 for dropped packets only."},
	{"reason", "Only packets dropped for this reason."},
}

// parseWatch reads the query of a capture or trace.
func parseWatch(q url.Values) (f dataplane.Filter, err error) {
	s, err := parseFilter(q)
	if err != nil {
		return f, err
	}
	if s.hasProtocol {
		f.Protocol = s.protocol
	}
	f.A, f.B = dataplane.End{Net: s.client.net, Port: s.client.port}, dataplane.End{Net: s.vip.net, Port: s.vip.port}
	if s.service != "" {
		f.Services = []string{s.service}
	}
	if s.node != "" {
		f.Nodes = []string{s.node}
	}
	switch text := q.Get("dropped"); text {
	case "", "0":
	case "1":
		f.Dropped = true
	default:
		return f, fmt.Errorf("dropped: %q: want 1 or 0", text)
	}
	if text := q.Get("reason"); text != "" {
		var r dataplane.Reason
		if err := r.UnmarshalText([]byte(text)); err != nil {
			return f, fmt.Errorf("reason: %w", err)
		}
		f.Dropped, f.Reasons = true, []dataplane.Reason{r}
	}
	return f, nil
}

// getCapture streams a capture until the caller has enough.
func (in *instance) getCapture(w http.ResponseWriter, r *http.Request) (any, error) {
	f, err := parseWatch(r.URL.Query())
	if err != nil {
		return nil, &requestError{http.StatusBadRequest, err}
	}
	cfg := &dataplane.CaptureConfig{Filter: f}
	for _, n := range []struct {
		name string
		to   *int
	}{{"packets", &cfg.MaxPackets}, {"snaplen", &cfg.SnapLen}} {
		if text := r.URL.Query().Get(n.name); text != "" {
			if *n.to, err = strconv.Atoi(text); err != nil || *n.to < 1 {
				return nil, badRequest("%s: %q: want a number from 1 on", n.name, text)
			}
		}
	}
	w.Header().Set("Content-Type", "application/x-pcapng")
	// Its head is written at once, which tells the caller that the capture has begun.
	c, err := in.plane.Capture(&flusher{w}, cfg)
	if err != nil {
		w.Header().Del("Content-Type")
		return nil, &requestError{http.StatusBadRequest, err}
	}
	if err := c.Run(r.Context()); err != nil {
		in.log.Info("capture ended", "err", err)
	}
	return nil, nil
}

// flusher sends on what is written.
type flusher struct{ w http.ResponseWriter }

func (f *flusher) Write(b []byte) (int, error) {
	n, err := f.w.Write(b)
	if err == nil {
		err = http.NewResponseController(f.w).Flush()
	}
	return n, err
}

// getTrace streams explanations, a JSON object a line.
func (in *instance) getTrace(w http.ResponseWriter, r *http.Request) (any, error) {
	f, err := parseWatch(r.URL.Query())
	if err != nil {
		return nil, &requestError{http.StatusBadRequest, err}
	}
	t, err := in.plane.Trace(&dataplane.TraceConfig{Filter: f})
	if err != nil {
		return nil, &requestError{http.StatusBadRequest, err}
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	_ = http.NewResponseController(w).Flush()
	enc := json.NewEncoder(&flusher{w})
	t.Run(r.Context(), func(x dataplane.Traced) {
		if enc.Encode(tracedReply{x.Time, explained(&x.Explanation)}) != nil {
			t.Stop()
		}
	})
	return nil, nil
}

type tracedReply struct {
	Time time.Time `json:"time" doc:"When the packet came."`
	explainReply
}

// watchFlags declares the filter of a capture or trace.
func watchFlags(f *flag.FlagSet) func() url.Values {
	text := map[string]*string{
		"service":  f.String("service", "", "only packets of this `service`"),
		"node":     f.String("node", "", "only packets to and from this `node`, as FARM/NODE"),
		"client":   f.String("client", "", "only packets of this `address`, network, or address and port"),
		"vip":      f.String("vip", "", "only packets to or from this virtual `address`, network, or address and port"),
		"protocol": f.String("proto", "", "only packets of this `protocol`: tcp, udp, icmp or a number"),
		"reason":   f.String("reason", "", "only packets dropped for this `reason`, such as no-node"),
	}
	dropped := f.Bool("dropped", false, "only packets that are dropped")
	return func() url.Values {
		q := url.Values{}
		for name, value := range text {
			if *value != "" {
				q.Set(name, *value)
			}
		}
		if *dropped {
			q.Set("dropped", "1")
		}
		return q
	}
}

func captureCommand() cli.Command {
	return cli.Command{
		Name: "capture", Summary: "capture packets of the running instance, each with what became of it",
		Text: "It writes the pcapng format, to a file or to the standard output, for Wireshark and tshark: the comment of a packet says what became of it and why. It ends with Ctrl-C, or after as many packets as were asked for.",
		Flags: func(f *flag.FlagSet) cli.Run {
			file := f.String("w", "-", "`file` to write; - is the standard output")
			packets := f.Int("n", 10_000, "most `packets`")
			snap := f.Int("snaplen", 0, "most `octets` kept of a packet; 0 keeps all")
			filter := watchFlags(f)
			cl := &client{}
			cl.flags(f)
			return func(ctx context.Context, std cli.IO, _ []string) error {
				if *packets < 1 || *snap < 0 {
					return cli.Usage("-n %d -snaplen %d: want a number of packets from 1 on, and of octets, or 0 for all", *packets, *snap)
				}
				q := filter()
				q.Set("packets", strconv.Itoa(*packets))
				if *snap > 0 {
					q.Set("snaplen", strconv.Itoa(*snap))
				}
				resp, err := cl.open(ctx, http.MethodGet, "/api/v1/capture?"+q.Encode(), nil)
				if err == nil {
					defer resp.Body.Close()
					err = save(*file, std.Out, resp.Body)
				}
				if ctx.Err() != nil {
					return nil // enough, said the user
				}
				return err
			}
		},
	}
}

// save copies what comes to a file, or for - to out. It is for what an instance has answered, so that a file stays as it is if there is none.
func save(name string, out io.Writer, from io.Reader) error {
	if name == "-" {
		_, err := io.Copy(out, from)
		return err
	}
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, from)
	return errors.Join(err, f.Close())
}

func traceCommand() cli.Command {
	return cli.Command{
		Name: "trace", Summary: "explain packets of the running instance as they are forwarded",
		Text: "It ends with Ctrl-C, or after as many packets as were asked for. At most 100 packets a second are explained.",
		Flags: func(f *flag.FlagSet) cli.Run {
			packets := f.Int("n", 0, "`number` of packets; 0 goes on")
			asJSON := f.Bool("json", false, "print a JSON object for each packet")
			filter := watchFlags(f)
			cl := &client{}
			cl.flags(f)
			return func(ctx context.Context, std cli.IO, _ []string) error {
				if *packets < 0 {
					return cli.Usage("-n %d: want a number of packets, or 0 to go on", *packets)
				}
				resp, err := cl.open(ctx, http.MethodGet, "/api/v1/trace?"+filter().Encode(), nil)
				if err != nil {
					return err
				}
				defer resp.Body.Close()
				sc := bufio.NewScanner(resp.Body)
				sc.Buffer(nil, 1<<20)
				for n := 0; (*packets == 0 || n < *packets) && sc.Scan(); n++ {
					text := sc.Text()
					if !*asJSON {
						var x tracedReply
						if err := json.Unmarshal(sc.Bytes(), &x); err != nil {
							return err
						}
						text = x.Time.Local().Format("15:04:05.000000 ") + x.Text
					}
					if _, err := fmt.Fprintln(std.Out, text); err != nil {
						return err
					}
				}
				if ctx.Err() != nil {
					return nil // enough, said the user
				}
				return sc.Err()
			}
		},
	}
}
