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
	"fmt"
	"io"

	"github.com/lbprim/lbprim/examples/internal/cli"
	"github.com/lbprim/lbprim/examples/internal/conf"
)

const usage = `Healthd checks servers by their own protocols and tells who needs to know.

Usage:
  healthd probe METHOD TARGET [KEY=VALUE ...]
                        make one probe now and show what was sent and seen, such as
                          healthd probe smtp mail.example:25
                          healthd probe http 10.0.0.1:80 path=/health status=[200,204]
                          healthd probe imap4 10.0.0.1:993 tls=true server-name=mail.example verify=true
                          healthd probe icmp 2001:db8::1
                        -packets also shows the packets, -q shows the verdict only, -json prints it as JSON
  healthd run FILE      check until interrupted; SIGHUP or a changed file reloads it
                        -table shows a table that renews itself, -log-json logs in JSON
  healthd once FILE [NAME ...]
                        check until every check is up or down (-timeout 30s), print a table, and end
  healthd explain FILE POLICY [CHECK=up|down ...]
                        say what a policy would be and why; checks that are not named are unknown
  healthd check FILE    say all that is wrong with a file, with line and column
  healthd methods       list the methods with their keys
  healthd reference     print every key of the file with its meaning
  healthd schema        print the JSON schema of the file, for editors
  healthd example       print a file to begin with

Exit status of probe, once and explain, for scripts:
  0  passed, or all that was asked for is up
  1  failed, or something is down; also a wrong file
  2  wrong usage
  3  nobody can tell: the cause is this machine (no route, no permission), or unknown
With -plugin, as monitoring plug-ins do: 0 up, 2 down, 3 unknown.
`

func main() { program().Main() }

func program() *cli.Program {
	return &cli.Program{Name: "healthd", Usage: usage, Commands: []cli.Command{
		{Name: "probe", Run: probeCommand},
		{Name: "run", Run: runCommand},
		{Name: "once", Run: onceCommand},
		{Name: "explain", Run: explainCommand},
		{Name: "check", Run: checkCommand},
		{Name: "methods", Run: methodsCommand},
		{Name: "reference", Run: func(_ context.Context, _ []string, out, _ io.Writer) error { return conf.Reference(out, config{}) }},
		{Name: "schema", Run: func(_ context.Context, _ []string, out, _ io.Writer) error {
			enc := json.NewEncoder(out)
			enc.SetIndent("", "  ")
			return enc.Encode(conf.Schema(config{}, "healthd configuration, version 1"))
		}},
		{Name: "example", Run: func(_ context.Context, _ []string, out, _ io.Writer) error {
			_, err := io.WriteString(out, exampleFile)
			return err
		}},
	}}
}

func checkCommand(_ context.Context, args []string, out, _ io.Writer) error {
	rest, err := cli.Args(cli.Flags("check"), args, 1, 1, "a file")
	if err != nil {
		return err
	}
	c, err := load(rest[0])
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s is right: %d checks, %d policies, %d agents, %d files\n", rest[0], len(c.Checks), len(c.Policies), len(c.Agents), len(c.Files))
	return err
}
