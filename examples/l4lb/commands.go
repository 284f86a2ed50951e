package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/lbprim/lbprim/examples/internal/cli"
	"github.com/lbprim/lbprim/examples/internal/conf"
	"github.com/lbprim/lbprim/steering"
)

func runCommand() cli.Command {
	return cli.Command{
		Name: "run", Args: "FILE", Least: 1, Summary: "balance as the file says", Complete: "file",
		Text: `Routes and rules that the kernel needs are set up, and removed at the end. With -no-setup they are the administrator's: the commands are printed, and "l4lb setup" prints them too. A device made that way stays while the balancer restarts, so that nothing answers for it meanwhile.

The other commands reach it at admin.socket of the file, /run/l4lb/admin.sock by default; several balancers on a machine need a socket each.

SIGHUP, or a change of the file, reloads it. SIGTERM and SIGINT end the balancer; with state.file set, sessions go on when it starts again. As root it gives up all privileges but those it needs (CAP_NET_ADMIN, CAP_NET_RAW). Under systemd it says when it is ready and answers the watchdog.`,
		Flags: func(f *flag.FlagSet) cli.Run {
			asJSON := f.Bool("json", false, "log in JSON")
			noSetup := f.Bool("no-setup", false, "set up no routes and rules, but print the commands that do")
			keep := f.Bool("keep-privileges", false, "give up no privileges; checks of method command may need that")
			return func(ctx context.Context, std cli.IO, args []string) error {
				var h slog.Handler = slog.NewTextHandler(std.Err, nil)
				if *asJSON {
					h = slog.NewJSONHandler(std.Err, nil)
				}
				log := slog.New(h)
				if !*keep {
					if err := dropPrivileges(); err != nil {
						log.Warn("privileges not given up", "err", err)
					}
				}
				return run(ctx, args[0], log, runOptions{noSetup: *noSetup})
			}
		},
	}
}

func checkCommand() cli.Command {
	return cli.Command{
		Name: "check", Args: "FILE", Least: 1, Summary: "check a file and print every fault with its place", Complete: "file",
		Flags: func(*flag.FlagSet) cli.Run {
			return func(_ context.Context, std cli.IO, args []string) error {
				c, err := load(args[0])
				if err != nil {
					return err
				}
				nodes := 0
				for _, f := range c.Farms {
					nodes += len(f.Nodes)
				}
				table, err := c.compile(newPools(nil), nil, nil)
				if err != nil {
					return err
				}
				fmt.Fprintf(std.Out, "%s: right: %d services, %d farms, %d nodes\n", args[0], len(c.Services), len(c.Farms), nodes)
				for r, cover := range table.Shadowed() {
					var names []string
					for _, by := range cover {
						names = append(names, by.Name)
					}
					fmt.Fprintf(std.Out, "note: service %s is never reached: %s get all its packets\n", r.Name, strings.Join(names, ", "))
				}
				for _, name := range c.idle() {
					fmt.Fprintf(std.Out, "note: element %s is never checked: the policy of no farm leads to it\n", name)
				}
				return nil
			}
		},
	}
}

func explainCommand() cli.Command {
	return cli.Command{
		Name: "explain", Args: "[FILE]", Most: 1, Summary: "say what becomes of the first packet of a flow, and why", Complete: "file",
		Text: "With a file, it is asked of that file, all nodes being up. Without, it is asked of the running instance, with its sessions and the health of its nodes.",
		Flags: func(f *flag.FlagSet) cli.Run {
			src := f.String("src", "", "where the packet comes from, as `address:port`")
			dst := f.String("dst", "", "where it goes, as `address:port`")
			proto := f.String("proto", "tcp", "tcp, udp, icmp or the number of a `protocol`")
			cl := &client{}
			cl.flags(f)
			return func(ctx context.Context, std cli.IO, args []string) error {
				number, from, to, err := parseFlow(*proto, *src, *dst)
				if err != nil {
					return cli.Usage("-%v", err)
				}
				if len(args) == 0 {
					var r explainReply
					q := url.Values{"src": {*src}, "dst": {*dst}, "protocol": {*proto}}
					if err := cl.call(ctx, http.MethodGet, "/api/v1/explain?"+q.Encode(), nil, &r); err != nil {
						return err
					}
					_, err := fmt.Fprintln(std.Out, r.Text)
					return err
				}
				c, err := load(args[0])
				if err != nil {
					return err
				}
				for _, fm := range c.Farms {
					fm.Check, fm.Policy, fm.Ping = nil, expr{}, nil // nobody checks here: all nodes count as up
				}
				table, err := c.compile(newPools(nil), nil, nil)
				if err != nil {
					return err
				}
				plane, err := c.dryPlane(table)
				if err != nil {
					return err
				}
				defer plane.Close()
				e, err := plane.ExplainFlow(number, from, to)
				if err != nil {
					return err
				}
				_, err = fmt.Fprintln(std.Out, e)
				return err
			}
		},
	}
}

func diffCommand() cli.Command {
	return cli.Command{
		Name: "diff", Args: "OLD NEW", Least: 2, Summary: "say what a reload from one file to another would change", Complete: "file",
		Text: "Status 1 says that the new file cannot be put in force by a reload, but needs a restart.",
		Flags: func(*flag.FlagSet) cli.Run {
			return func(_ context.Context, std cli.IO, args []string) error {
				old, err := load(args[0])
				if err != nil {
					return err
				}
				c, err := load(args[1])
				if err != nil {
					return err
				}
				changes := conf.Diff(*old, *c)
				for _, x := range changes {
					fmt.Fprintln(std.Out, x)
				}
				if len(changes) == 0 {
					fmt.Fprintln(std.Out, "nothing changes")
				}
				for _, note := range consequences(old, c) {
					fmt.Fprintln(std.Out, "note: "+note)
				}
				if fixed := fixedChanges(old, c); len(fixed) > 0 {
					return fmt.Errorf("a reload is refused: %s cannot change while running: %s", strings.Join(fixed, ", "), remedy(old))
				}
				return nil
			}
		},
	}
}

// consequences says what a change means for sessions.
func consequences(old, c *config) (notes []string) {
	for name, fm := range old.Farms {
		now := c.Farms[name]
		gone := now == nil || now.is4() != fm.is4() // of the other family it begins anew
		for _, n := range fm.Nodes {
			full, i := nodeName(name, n.Name), -1
			if !gone {
				i = slices.IndexFunc(now.Nodes, func(x *node) bool { return x.Name == n.Name })
			}
			switch {
			case n.Admin == steering.Disabled: // it has none
			case gone:
				notes = append(notes, "sessions of "+full+" stay at "+n.Address.String()+" until they end, and it is not checked any more")
			case i < 0:
				notes = append(notes, "the sessions of "+full+" end")
			case now.Nodes[i].Admin == steering.Disabled:
				notes = append(notes, "the sessions of "+full+" end, as it is disabled")
			case now.Nodes[i].Address != n.Address:
				notes = append(notes, "sessions of "+full+" stay at "+n.Address.String()+" until they end; new ones go to "+now.Nodes[i].Address.String())
			}
		}
	}
	slices.Sort(notes)
	return notes
}

func adminCommand(name, want, summary string) cli.Command {
	return cli.Command{
		Name: name, Args: "NODE", Least: 1, Summary: summary, Complete: "status -names",
		Text: "NODE is FARM/NODE, or the node's own name if only one farm has it. It holds over reloads and, with state.file set, over restarts, until the file says something new about the node.",
		Flags: func(f *flag.FlagSet) cli.Run {
			cl := &client{}
			cl.flags(f)
			return func(ctx context.Context, std cli.IO, args []string) error {
				s, err := cl.status(ctx)
				if err != nil {
					return err
				}
				farm, node, err := s.find(args[0])
				if err != nil {
					return err
				}
				var n nodeReply
				if err := cl.call(ctx, http.MethodPut, "/api/v1/nodes/"+url.PathEscape(farm)+"/"+url.PathEscape(node), wishRequest{want}, &n); err != nil {
					return err
				}
				_, err = fmt.Fprintf(std.Out, "%s/%s: %v, %d sessions; %s\n", farm, node, n.State, n.Sessions, n.Reason)
				return err
			}
		},
	}
}

// find finds a node by its full name, or by its own if only one farm has it.
func (s *statusReply) find(name string) (farm, node string, err error) {
	var all []nodePath
	for _, f := range s.Farms {
		for _, n := range f.Nodes {
			all = append(all, nodePath{f.Name, n.Name})
		}
	}
	i, err := findNode(name, all)
	if err != nil {
		return "", "", err
	}
	return all[i].farm, all[i].node, nil
}

func reloadCommand() cli.Command {
	return cli.Command{
		Name: "reload", Summary: "have the running instance read its file again",
		Flags: func(f *flag.FlagSet) cli.Run {
			cl := &client{}
			cl.flags(f)
			return func(ctx context.Context, std cli.IO, _ []string) error {
				if err := cl.call(ctx, http.MethodPost, "/api/v1/reload", nil, nil); err != nil {
					return err
				}
				_, err := fmt.Fprintln(std.Out, "reloaded")
				return err
			}
		},
	}
}

func setupCommand() cli.Command {
	return cli.Command{
		Name: "setup", Args: "FILE", Least: 1, Summary: "print the commands that set the kernel up for run -no-setup", Complete: "file",
		Flags: func(f *flag.FlagSet) cli.Run {
			undo := f.Bool("undo", false, "print those that undo it")
			return func(_ context.Context, std cli.IO, args []string) error {
				c, err := load(args[0])
				if err != nil {
					return err
				}
				_, err = io.WriteString(std.Out, c.setupCommands(*undo))
				return err
			}
		},
	}
}

func exampleCommand() cli.Command {
	return cli.Command{
		Name: "example", Args: "[NAME]", Most: 1, Summary: "print a file to begin with", Complete: "example -names",
		Text: "NAME is first (the default), tls or dsr.",
		Flags: func(f *flag.FlagSet) cli.Run {
			names := f.Bool("names", false, "print the names only")
			return func(_ context.Context, std cli.IO, args []string) error {
				if *names {
					_, err := fmt.Fprintln(std.Out, strings.Join(exampleNames(), "\n"))
					return err
				}
				text, err := exampleFile(append(args, "first")[0])
				if err != nil {
					return err
				}
				_, err = io.WriteString(std.Out, text)
				return err
			}
		},
	}
}

func referenceCommand() cli.Command {
	return cli.Command{Name: "reference", Summary: "print every key of the file with its meaning", Flags: func(*flag.FlagSet) cli.Run {
		return func(_ context.Context, std cli.IO, _ []string) error { return conf.Reference(std.Out, config{}) }
	}}
}

func schemaCommand() cli.Command {
	return cli.Command{Name: "schema", Summary: "print the JSON schema of the file, for editors", Flags: func(*flag.FlagSet) cli.Run {
		return func(_ context.Context, std cli.IO, _ []string) error {
			enc := json.NewEncoder(std.Out)
			enc.SetIndent("", "  ")
			return enc.Encode(conf.Schema(config{}, "l4lb configuration, version 1"))
		}
	}}
}
