package healthcheck

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"
)

// BenchmarkProbe is what a Monitor costs per probe, with a prober that does
// nothing: the heap, the context, the result, the history, the next time. For
// 100,000 targets at 5 s it is spent 20,000 times a second.
func BenchmarkProbe(b *testing.B) {
	for _, n := range []int{1000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			m, err := NewMonitor(nil)
			if err != nil {
				b.Fatal(err)
			}
			p := ProberFunc(func(context.Context, netip.AddrPort) Result { return Passed("200 OK") })
			checks := make([]Check, n)
			for i := range checks {
				checks[i] = Check{ID: fmt.Sprint(i), Target: netip.AddrPortFrom(netip.IPv6Loopback(), uint16(i)), Prober: p}
			}
			if err := m.Set(checks...); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			done := 0
			for b.Loop() {
				if done > 0 {
					done--
					continue
				}
				// A fifth of a second passes, and with it a 25th of the targets.
				m.epoch = m.epoch.Add(-200 * time.Millisecond)
				k, _, err := m.Step(b.Context())
				if err != nil {
					b.Fatal(err)
				}
				done = max(k-1, 0)
			}
		})
	}
}

func BenchmarkSYNCount(b *testing.B) {
	var c SYNCount
	for b.Loop() {
		c.SYN()
		c.SYNACK()
	}
}

func BenchmarkTraffic(b *testing.B) {
	var t Traffic
	now := time.Now()
	for b.Loop() {
		t.Sent(now)
		t.Heard()
	}
}

func BenchmarkPolicyEval(b *testing.B) {
	ps := mustPolicies(b, "web1 web2 db1 maint", "web=web1 OR web2", "p=(web AND db1) OR NOT maint")
	all := func(string) Truth { return IsUp }
	for b.Loop() {
		if ps.Eval("p", all) != IsUp {
			b.Fatal("down")
		}
	}
}
