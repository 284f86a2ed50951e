package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/lbprim/lbprim/examples/internal/cli"
	"github.com/lbprim/lbprim/examples/internal/term"
)

func statusCommand() cli.Command {
	return cli.Command{
		Name: "status", Summary: "show services, nodes and drops of the running instance",
		Text: "Status 1 says that it is not ready.",
		Flags: func(f *flag.FlagSet) cli.Run {
			asJSON := f.Bool("json", false, "print everything in JSON")
			names := f.Bool("names", false, "print the nodes' names only")
			cl := &client{}
			cl.flags(f)
			return func(ctx context.Context, std cli.IO, _ []string) error {
				s, err := cl.status(ctx)
				if err != nil {
					return err
				}
				switch {
				case *asJSON:
					enc := json.NewEncoder(std.Out)
					enc.SetIndent("", "  ")
					return enc.Encode(s)
				case *names:
					for _, f := range s.Farms {
						for _, n := range f.Nodes {
							fmt.Fprintln(std.Out, nodeName(f.Name, n.Name))
						}
					}
					return nil
				}
				if _, err := io.WriteString(std.Out, render(s, nil)); err != nil {
					return err
				}
				if !s.Ready {
					return fmt.Errorf("not ready")
				}
				return nil
			}
		},
	}
}

func topCommand() cli.Command {
	return cli.Command{
		Name: "top", Summary: "watch services, nodes, rates and drops of the running instance",
		Text: "It ends with Ctrl-C. Where the output is no terminal, each round is printed below the last one.",
		Flags: func(f *flag.FlagSet) cli.Run {
			every := f.Duration("every", time.Second, "`time` between two rounds")
			rounds := f.Int("n", 0, "`number` of rounds; 0 goes on")
			cl := &client{}
			cl.flags(f)
			return func(ctx context.Context, std cli.IO, _ []string) error {
				if *every < 100*time.Millisecond {
					return cli.Usage("-every %v: want 100ms or more", *every)
				}
				if *rounds < 0 {
					return cli.Usage("-n %d: want a number of rounds, or 0 to go on", *rounds)
				}
				return top(ctx, cl, std.Out, *every, *rounds)
			}
		},
	}
}

// top draws status after status.
func top(ctx context.Context, cl *client, out io.Writer, every time.Duration, rounds int) error {
	_, _, drawing := term.Size(out)
	if drawing {
		fmt.Fprint(out, "\x1b[?1049h\x1b[?25l") // the other screen, without a cursor
		defer fmt.Fprint(out, "\x1b[?25h\x1b[?1049l")
	}
	t := time.NewTicker(every)
	defer t.Stop()
	var last *statusReply
	for i := 0; rounds == 0 || i < rounds; i++ {
		if i > 0 {
			select {
			case <-ctx.Done():
				return nil
			case <-t.C:
			}
		}
		s, err := cl.status(ctx)
		if ctx.Err() != nil {
			return nil
		}
		text := ""
		switch {
		case err == nil:
			text = render(s, last)
			last = s
		case last == nil || !drawing:
			return err
		default:
			text = err.Error() + "\n" // it may be about to start again
		}
		if drawing {
			columns, rows, _ := term.Size(out)
			text = "\x1b[H" + strings.ReplaceAll(cut(text, columns, rows-1), "\n", "\x1b[K\n") + "\x1b[J"
		}
		if _, err := io.WriteString(out, text); err != nil {
			return err
		}
	}
	return nil
}

// cut keeps a text within a terminal.
func cut(text string, columns, rows int) string {
	lines := strings.SplitAfter(text, "\n")
	for i, l := range lines {
		if r := []rune(strings.TrimSuffix(l, "\n")); len(r) > columns {
			lines[i] = string(r[:columns]) + "\n"
		}
	}
	return strings.Join(lines[:min(len(lines), max(1, rows))], "")
}

// render writes a status for people, with rates since the last one, or else since the start.
func render(s, last *statusReply) string {
	var b strings.Builder
	state := "ready"
	if !s.Ready {
		state = "NOT READY"
	}
	since, seconds := "start", s.Now.Sub(s.Started).Seconds()
	services, nodes := map[string]trafficReply{}, map[string]trafficReply{}
	if last != nil && last.Started.Equal(s.Started) {
		since, seconds = "", s.Now.Sub(last.Now).Seconds()
		for _, x := range last.Services {
			services[x.Name] = x.Traffic
		}
		for _, f := range last.Farms {
			for _, n := range f.Nodes {
				nodes[nodeName(f.Name, n.Name)] = n.Traffic
			}
		}
	} else {
		last = nil
	}
	per := func(now, before uint64) float64 {
		if seconds <= 0 || now < before {
			return 0
		}
		return float64(now-before) / seconds
	}
	fmt.Fprintf(&b, "l4lb: %s, up %v, %s since %s, version %s\n", state, s.Now.Sub(s.Started).Round(time.Second), s.Config.File, s.Config.Loaded.Local().Format(time.DateTime), s.Version)
	for _, w := range s.Warnings {
		fmt.Fprintf(&b, "! %s\n", strings.ReplaceAll(w, "\n", "; "))
	}
	note := "rates of the last round"
	if since != "" {
		note = "rates since the start"
	}
	fmt.Fprintf(&b, "%d of %d sessions, %d clients remembered; %s\n\n", s.Totals.Sessions, s.Totals.MaxSessions, s.Totals.Associations, note)
	w := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "SERVICE\tMATCH\tFARM\tNODES\tNEW/S\tIN\tOUT\tREFUSED")
	for _, x := range s.Services {
		t, was := x.Traffic, services[x.Name]
		usable := fmt.Sprintf("%d/%d", x.Usable, x.Nodes)
		if x.Disabled {
			usable = "disabled"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%.1f\t%s\t%s\t%d\n", x.Name, x.Match, x.Farm, usable, per(t.Sessions, was.Sessions), bits(per(t.In.Bytes, was.In.Bytes)), bits(per(t.Out.Bytes, was.Out.Bytes)), t.Refused)
	}
	fmt.Fprintln(w, "\t\t\t\t\t\t\t")
	fmt.Fprintln(w, "NODE\tSTATE\tSHARE\tGOT\tSESSIONS\tNEW/S\tOUT\tWHY")
	for _, f := range s.Farms {
		for _, n := range f.Nodes {
			t, was := n.Traffic, nodes[nodeName(f.Name, n.Name)]
			state := n.State.String()
			if n.Pressure != 0 {
				state += ", " + n.Pressure.String() + " pressure"
			}
			fmt.Fprintf(w, "%s\t%s\t%.0f %%\t%.0f %%\t%d\t%.1f\t%s\t%s\n", nodeName(f.Name, n.Name), state, 100*n.Share, 100*n.Got, n.Sessions, per(t.Sessions, was.Sessions), bits(per(t.Out.Bytes, was.Out.Bytes)), n.Reason)
		}
	}
	w.Flush()
	if len(s.Drops) > 0 {
		b.WriteString("\nDROPS\n")
		was := map[string]uint64{}
		if last != nil {
			for _, d := range last.Drops {
				was[d.Reason.String()] = d.Packets
			}
		}
		w := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
		for _, d := range s.Drops {
			fmt.Fprintf(w, "%s\t%d\t%.1f/s\n", d.Reason, d.Packets, per(d.Packets, was[d.Reason.String()]))
		}
		w.Flush()
	}
	return b.String()
}

// bits writes octets per second as bits per second.
func bits(perSecond float64) string {
	x := 8 * perSecond
	for _, p := range []string{"", "k", "M", "G"} {
		if x < 1000 {
			if p != "" && x < 10 {
				return fmt.Sprintf("%.1f %sbit/s", x, p)
			}
			return fmt.Sprintf("%.0f %sbit/s", x, p)
		}
		x /= 1000
	}
	return fmt.Sprintf("%.1f Tbit/s", x)
}

func sessionsCommand() cli.Command {
	return cli.Command{
		Name: "sessions", Summary: "list, count or end sessions of the running instance",
		Flags: func(f *flag.FlagSet) cli.Run {
			q := map[string]*string{}
			for _, p := range []struct{ name, doc string }{
				{"service", "only those of this `service`"}, {"node", "only those of this `node`, with or without its farm"}, {"client", "only those of this `address`, network, or address and port"},
				{"vip", "only those to this virtual `address`, network, or address and port"}, {"proto", "only those of this `protocol`: tcp, udp, icmp or a number"},
			} {
				q[p.name] = f.String(p.name, "", p.doc)
			}
			limit := f.Int("limit", 100, "most to list; 0 lists none")
			counting := f.Bool("count", false, "print only how many there are")
			kill := f.Bool("kill", false, "end them")
			all := f.Bool("all", false, "with -kill: end all, without a filter")
			cl := &client{}
			cl.flags(f)
			return func(ctx context.Context, std cli.IO, _ []string) error {
				if *limit < 0 {
					return cli.Usage("-limit %d: want 0 or more", *limit)
				}
				query := url.Values{}
				for name, value := range q {
					if *value != "" {
						query.Set(strings.Replace(name, "proto", "protocol", 1), *value)
					}
				}
				if *kill {
					return killSessions(ctx, cl, std.Out, query, *all)
				}
				if *counting {
					*limit = 0
				}
				query.Set("limit", fmt.Sprint(*limit))
				var r sessionsReply
				if err := cl.call(ctx, http.MethodGet, "/api/v1/sessions?"+query.Encode(), nil, &r); err != nil {
					return err
				}
				if *counting {
					_, err := fmt.Fprintln(std.Out, r.Matched)
					return err
				}
				w := tabwriter.NewWriter(std.Out, 0, 8, 2, ' ', 0)
				fmt.Fprintln(w, "PROTOCOL\tCLIENT\tVIRTUAL ADDRESS\tNODE\tADDRESS\tSERVICE\tPHASE\tIN\tOUT\tAGE")
				for _, s := range r.Sessions {
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%v\t%d B\t%d B\t%v\n", s.Protocol, s.Client, s.VIP, s.NodeName, s.Node, s.Service, s.Phase, s.In.Bytes, s.Out.Bytes, time.Since(s.Begun).Round(time.Second))
				}
				if err := w.Flush(); err != nil {
					return err
				}
				if more := r.Matched - len(r.Sessions); more > 0 {
					fmt.Fprintf(std.Out, "and %d more\n", more)
				}
				return nil
			}
		},
	}
}

func killSessions(ctx context.Context, cl *client, out io.Writer, query url.Values, all bool) error {
	if len(query) == 0 && !all {
		return cli.Usage("-kill: want a filter such as -node, or -all")
	}
	if all {
		query.Set("all", "1")
	}
	var r killReply
	if err := cl.call(ctx, http.MethodDelete, "/api/v1/sessions?"+query.Encode(), nil, &r); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "%d sessions ended\n", r.Killed)
	return err
}
