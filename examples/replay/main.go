// Replay sends a packet capture through a balancer's configuration offline, and says what would become of each flow,
// or which flows would move if the configuration changed.
//
//	replay run l4lb.yaml capture.pcap
//	replay diff old.yaml new.yaml capture.pcap
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/lbprim/lbprim/dataplane/pcapng"
	"github.com/lbprim/lbprim/examples/internal/cli"
	"github.com/lbprim/lbprim/examples/internal/term"
)

func main() { program().Main() }

func program() *cli.Program {
	return &cli.Program{
		Name:    "replay",
		Summary: "sends a capture through a balancer's configuration, and nothing on any network",
		Text: `CONFIG is a file of l4lb. All nodes count as up, but those of -down. CAPTURE is pcap or pcapng: Ethernet with or without VLAN tags, raw IP,
loopback or Linux cooked; - is standard input. The clock is the capture's, and so is the order of packets: what a balancer in that place would
have done with them, it does here. Keys of CONFIG that mean nothing offline are listed.

  tcpdump -i eth0 -w clients.pcap dst net 192.0.2.0/24
  replay run l4lb.yaml clients.pcap
  replay diff l4lb.yaml changed.yaml clients.pcap || echo "flows would move"

Exit status: 0 done, and with diff no flow moves; 1 a file is wrong; 2 wrong usage; 3 of diff: flows move; 130 interrupted.`,
		Commands: []cli.Command{
			{Name: "run", Args: "CONFIG CAPTURE", Least: 2, Summary: "say what would become of each flow", Complete: "file", Flags: func(f *flag.FlagSet) cli.Run {
				o := declare(f, "list so `many` flows; -1 all")
				f.StringVar(&o.out, "out", "", "write the packets as they would be sent to a `file`, as pcapng with a comment on each")
				return o.checked(runCommand)
			}},
			{Name: "diff", Args: "OLD NEW CAPTURE", Least: 3, Summary: "say which flows would go elsewhere; exit status 3 if any would", Complete: "file", Flags: func(f *flag.FlagSet) cli.Run {
				return declare(f, "list so `many` flows that move; -1 all").checked(diffCommand)
			}},
		},
	}
}

// options are the flags of both commands, out that of run alone.
type options struct {
	flows, sessions  int
	down             string
	json, noProgress bool
	out              string
}

func declare(f *flag.FlagSet, flows string) *options {
	o := &options{}
	f.IntVar(&o.flows, "flows", 20, flows)
	f.IntVar(&o.sessions, "sessions", 0, "room for so `many` sessions, instead of what the configuration says")
	f.StringVar(&o.down, "down", "", "take a node, `FARM/NODE`, for down; several separated by commas")
	f.BoolVar(&o.json, "json", false, "everything as JSON")
	f.BoolVar(&o.noProgress, "no-progress", false, "no progress bar; there is none anyway unless standard error is a terminal")
	return o
}

// checked is a command whose flags have been looked at.
func (o *options) checked(do func(ctx context.Context, o *options, args []string, out, errs io.Writer) error) cli.Run {
	return func(ctx context.Context, std cli.IO, args []string) error {
		if o.sessions < 0 || o.sessions > 1<<28 {
			return cli.Usage("-sessions %d: want 1 to %d, or 0 for what the configuration says", o.sessions, 1<<28)
		}
		if o.flows < -1 {
			return cli.Usage("-flows %d: want a number, or -1 for all", o.flows)
		}
		return do(ctx, o, args, std.Out, std.Err)
	}
}

// engine loads a configuration.
func (o *options) engine(name string) (*engine, *config, error) {
	c, err := load(name)
	if err != nil {
		return nil, nil, err
	}
	var down []string
	if o.down != "" {
		down = strings.Split(o.down, ",")
	}
	e, err := newEngine(name, c, o.sessions, down)
	return e, c, err
}

// replay sends the capture through the engines, with a progress bar.
func (o *options) replay(ctx context.Context, capture string, errs io.Writer, engines ...*engine) error {
	f, size, err := open(capture)
	if err != nil {
		return err
	}
	defer f.Close()
	in := &counted{r: f, ctx: ctx}
	bar := func(uint64) {}
	if _, _, ok := term.Size(errs); ok && !o.noProgress {
		last := time.Time{}
		bar = func(packets uint64) {
			if now := time.Now(); now.Sub(last) > 100*time.Millisecond {
				last = now
				fmt.Fprintf(errs, "\r%s %d packets ", progress(in.n.Load(), size), packets)
			}
		}
		defer fmt.Fprint(errs, "\r\x1b[K")
	}
	skipped, err := replay(in, engines, bar)
	for _, e := range engines {
		err = errors.Join(err, e.err)
		e.close()
	}
	if ctx.Err() != nil {
		return &cli.Status{Code: 130, Err: errors.New("replay: interrupted")}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", capture, err)
	}
	if skipped > 0 {
		fmt.Fprintf(errs, "%d packets are longer than any packet and were skipped\n", skipped)
	}
	return nil
}

// open opens a capture; size is 0 if nobody knows it.
func open(capture string) (f *os.File, size int64, err error) {
	if capture == "-" {
		return os.Stdin, 0, nil
	}
	if f, err = os.Open(capture); err != nil {
		return nil, 0, err
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, st.Size(), nil
}

// progress is a bar of 30 cells.
func progress(done, all int64) string {
	const cells = 30
	if all <= 0 { // a pipe
		return strings.Repeat("·", cells)
	}
	n := int(min(done, all) * cells / all)
	return strings.Repeat("█", n) + strings.Repeat("░", cells-n) + fmt.Sprintf(" %3d%%", min(done, all)*100/all)
}

// counted is a reader that counts and can be cancelled.
type counted struct {
	r   io.Reader
	ctx context.Context //nolint:containedctx // it lives as long as one replay
	n   atomic.Int64
}

func (c *counted) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := c.r.Read(p)
	c.n.Add(int64(n))
	return n, err
}

func runCommand(ctx context.Context, o *options, rest []string, out, errs io.Writer) error {
	e, c, err := o.engine(rest[0])
	if err != nil {
		return err
	}
	if o.out != "" {
		if same(o.out, rest[1]) {
			return cli.Usage("-out %s: that is the capture to read", o.out)
		}
		f, err := os.Create(o.out)
		if err != nil {
			return err
		}
		w := bufio.NewWriter(f)
		link := pcapng.Raw
		if e.frames {
			link = pcapng.Ethernet
		}
		if e.out, err = pcapng.NewWriter(w, &pcapng.Config{LinkType: link, MaxBytes: -1, Application: "lbprim replay"}); err != nil {
			return errors.Join(err, f.Close())
		}
		if err := errors.Join(o.replay(ctx, rest[1], errs, e), w.Flush(), f.Close()); err != nil {
			return err
		}
	} else if err := o.replay(ctx, rest[1], errs, e); err != nil {
		return err
	}
	r := e.report(rest[1], c)
	if o.json {
		return asJSON(out, r)
	}
	return r.print(out, o.flows)
}

// same reports whether two names are those of one file.
func same(a, b string) bool {
	x, err := os.Stat(a)
	y, err2 := os.Stat(b)
	return err == nil && err2 == nil && os.SameFile(x, y)
}

func diffCommand(ctx context.Context, o *options, rest []string, out, errs io.Writer) error {
	old, was, err := o.engine(rest[0])
	if err != nil {
		return err
	}
	next, now, err := o.engine(rest[1])
	if err != nil {
		return err
	}
	if err := o.replay(ctx, rest[2], errs, old, next); err != nil {
		return err
	}
	c := compare(old, next)
	c.OldNotes, c.NewNotes = was.notes(), now.notes()
	if o.json {
		err = asJSON(out, c)
	} else {
		err = c.print(out, o.flows)
	}
	if err == nil && c.Moved > 0 {
		err = &cli.Status{Code: 3}
	}
	return err
}
