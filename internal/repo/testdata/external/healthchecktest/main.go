// Command healthchecktest uses package healthcheck/healthchecktest, which is meant for tests, and its scripted prober here.
package main

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/healthcheck/healthchecktest"
)

func main() {
	p := healthchecktest.Script(healthcheck.Passed("all well"), healthcheck.Result{Verdict: healthcheck.Fail})
	target := netip.MustParseAddrPort("192.0.2.1:80")
	fmt.Println("healthchecktest:", p.Probe(context.Background(), target).Verdict, p.Probe(context.Background(), target).Verdict)
}
