package dataplane

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestOneDirectionKeepsBothEntries has a client send, and its node answer a good deal later: after a lone packet, and after so many
// that some wait for a place among the others to be kept alive.
func TestOneDirectionKeepsBothEntries(t *testing.T) {
	for _, n := range []int{1, chunk, 3*chunk + 1} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			both(t, func(t *testing.T, fam family) {
				p := newPlane(t, fam)
				vip := ap(fam.vip, 80)
				packets := make([][]byte, n)
				for i := range packets {
					packets[i] = udp(ap(fam.client, 1000+uint16(i)), vip, "x")
				}
				_, out := p.sendAll(packets...)
				for range 3 { // all but a minute apart, more than a minute in all
					p.now = p.now.Add(59 * time.Second)
					p.sendAll(packets...)
					p.Step(p.now)
				}
				p.now = p.now.Add(59 * time.Second)
				p.Step(p.now)
				require.Equal(t, n, p.Stats().Sessions)
				for _, o := range out {
					f, _ := parseFlow(o)
					p.forwarded(udp(f.Dst, f.Src, "y"), vip, f.Src)
				}
			})
		})
	}
}
