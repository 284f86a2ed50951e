// L4lb is a Layer 4 load balancer made of lbprim's packages: one YAML file, a TUN device or packet sockets, health checks, hot reload,
// an admin interface with a status page. README.md leads from nothing to a working balancer; l4lb help lists the commands.
package main

import "github.com/lbprim/lbprim/examples/internal/cli"

func main() { program().Main() }

func program() *cli.Program {
	return &cli.Program{
		Name:    "l4lb",
		Summary: "balances TCP, UDP and ICMP over servers at Layer 4",
		Text: `One YAML file says which services there are and which servers serve them. Begin with

  l4lb example > l4lb.yaml
  l4lb check l4lb.yaml
  l4lb run l4lb.yaml

The running balancer reads the file again when it changes or on SIGHUP, without disturbing a session; a file with a fault changes nothing. It is watched and steered over a Unix socket, by the commands below or by HTTP; the same socket has a status page, metrics for Prometheus and profiles.`,
		Commands: []cli.Command{
			runCommand(), checkCommand(), diffCommand(), explainCommand(), statusCommand(), topCommand(), sessionsCommand(), captureCommand(), traceCommand(),
			adminCommand("drain", "draining", "give a node no new session and let it keep those it has"),
			adminCommand("enable", "enabled", "let a node take part"),
			adminCommand("disable", "disabled", "give a node nothing, and end its sessions"),
			reloadCommand(), setupCommand(), exampleCommand(), referenceCommand(), schemaCommand(),
		},
	}
}
