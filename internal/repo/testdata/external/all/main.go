// Command all imports every package.
package main

import (
	"fmt"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/dataplane/afpacket"
	"github.com/lbprim/lbprim/dataplane/devtest"
	"github.com/lbprim/lbprim/dataplane/flowexport"
	"github.com/lbprim/lbprim/dataplane/pcapdev"
	"github.com/lbprim/lbprim/dataplane/pcapng"
	"github.com/lbprim/lbprim/dataplane/splice"
	"github.com/lbprim/lbprim/dataplane/tun"
	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/healthcheck/healthchecktest"
	"github.com/lbprim/lbprim/healthcheck/probe"
	"github.com/lbprim/lbprim/policy"
	"github.com/lbprim/lbprim/policy/l7"
	"github.com/lbprim/lbprim/sslpersist"
	"github.com/lbprim/lbprim/steering"
	"github.com/lbprim/lbprim/steering/cluster"
	"github.com/lbprim/lbprim/steering/cluster/flowshare"
	"github.com/lbprim/lbprim/steering/intercept"
	"github.com/lbprim/lbprim/steering/path"
)

func main() {
	all := []any{
		new(policy.Match), new(l7.Rule), new(clienttable.Flow), new(healthcheck.Check), new(probe.HTTP), new(sslpersist.Parser),
		new(steering.Node), new(intercept.Rule), new(path.Rule), new(dataplane.Service), new(tun.Config), new(afpacket.Config),
		new(pcapdev.Config), new(pcapng.Config), new(devtest.Config), new(splice.Conn), new(flowexport.Config), new(cluster.Config),
		new(flowshare.Config), new(healthchecktest.Env),
	}
	fmt.Println("all:", len(all))
}
