// Healthd checks servers by their own protocols, combines the checks by boolean policies, and tells people, scripts,
// HAProxy, keepalived and Prometheus. It forwards nothing.
//
//	healthd run FILE                        check until interrupted
//	healthd once FILE                       check once; the exit status tells
//	healthd probe smtp mail.example:25      one probe by hand, with what was sent and seen
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"

	"github.com/lbprim/lbprim/examples/internal/cli"
	"github.com/lbprim/lbprim/examples/internal/conf"
)

func main() { program().Main() }

func program() *cli.Program {
	return &cli.Program{
		Name:    "healthd",
		Summary: "checks servers by their own protocols and tells who needs to know",
		Text: `Exit status of probe, once and explain, for scripts:

  0  passed, or all that was asked for is up
  1  failed, or something is down; also a wrong file
  2  wrong usage
  3  nobody can tell: the cause is this machine (no route, no permission), or unknown

With -plugin, as monitoring plug-ins do: 0 up, 2 down, 3 unknown.`,
		Commands: []cli.Command{
			probeCommand(),
			{Name: "run", Args: "FILE", Least: 1, Summary: "check until interrupted; SIGHUP or a changed file reloads it", Complete: "file", Flags: runCommand},
			{Name: "once", Args: "FILE [NAME ...]", Least: 1, Most: -1, Summary: "check until every check is up or down, print a table, and end", Complete: "file", Flags: onceCommand},
			{
				Name: "explain", Args: "FILE POLICY [CHECK=up|down ...]", Least: 2, Most: -1, Summary: "say what a policy would be and why", Complete: "file",
				Text: "Checks that are not named are unknown.", Flags: explainCommand,
			},
			{Name: "check", Args: "FILE", Least: 1, Summary: "say all that is wrong with a file, with line and column", Complete: "file", Flags: plain(checkFile)},
			{Name: "methods", Summary: "list the methods with their keys", Flags: plain(func(out io.Writer, _ []string) error { return methods(out) })},
			{Name: "reference", Summary: "print every key of the file with its meaning", Flags: plain(func(out io.Writer, _ []string) error { return conf.Reference(out, config{}) })},
			{Name: "schema", Summary: "print the JSON schema of the file, for editors", Flags: plain(func(out io.Writer, _ []string) error {
				enc := json.NewEncoder(out)
				enc.SetIndent("", "  ")
				return enc.Encode(conf.Schema(config{}, "healthd configuration, version 1"))
			})},
			{Name: "example", Summary: "print a file to begin with", Flags: plain(func(out io.Writer, _ []string) error {
				_, err := io.WriteString(out, exampleFile)
				return err
			})},
		},
	}
}

// plain is a command without flags.
func plain(do func(out io.Writer, args []string) error) func(*flag.FlagSet) cli.Run {
	return func(*flag.FlagSet) cli.Run {
		return func(_ context.Context, std cli.IO, args []string) error { return do(std.Out, args) }
	}
}

func checkFile(out io.Writer, args []string) error {
	c, err := load(args[0])
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s is right: %d checks, %d policies, %d agents, %d files\n", args[0], len(c.Checks), len(c.Policies), len(c.Agents), len(c.Files))
	return err
}
