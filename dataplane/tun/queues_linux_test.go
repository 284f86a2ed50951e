package tun_test

import (
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/dataplane/tun"
	"github.com/lbprim/lbprim/internal/rtnl"
)

// arrival is a packet that came by a queue.
type arrival struct {
	queue int
	p     []byte
}

// arrivals reads all queues.
func arrivals(devs []*tun.Device) <-chan arrival {
	all := make(chan arrival, 1000)
	for i, d := range devs {
		go func() {
			bufs, sizes := buffers(d.BatchSize(), 65535)
			for {
				n, err := d.Read(bufs, sizes, headroom)
				if err != nil {
					return
				}
				for k := range n {
					all <- arrival{i, append([]byte(nil), bufs[k][headroom:headroom+sizes[k]]...)}
				}
			}
		}()
	}
	return all
}

// A queue that has written a flow's packets gets those of the other direction: so both directions of a translated connection come by the queue
// that its first packet came by.
func TestQueuesFollowWhatTheyWrite(t *testing.T) {
	n := namespace(t)
	devs := open(t, n, &tun.Config{Addrs: prefixes("10.81.0.1/24", "fd81::1/64")}, 4)
	all := arrivals(devs)
	for _, ends := range [][2]string{{"10.81.0.1", "10.81.0.2"}, {"fd81::1", "fd81::2"}} {
		t.Run(ends[0], func(t *testing.T) {
			to := netip.AddrPortFrom(netip.MustParseAddr(ends[1]), 4000)
			c, err := n.ListenPacket(t.Context(), "udp", netip.AddrPortFrom(netip.MustParseAddr(ends[0]), 4789).String())
			require.NoError(t, err)
			defer c.Close()
			send := func() int {
				_, err := c.WriteTo([]byte("request"), net.UDPAddrFromAddrPort(to))
				require.NoError(t, err)
				for deadline := time.After(20 * time.Second); ; {
					select {
					case a := <-all:
						if len(a.p) > 7 && string(a.p[len(a.p)-7:]) == "request" {
							return a.queue
						}
					case <-deadline:
						require.FailNow(t, "no packet came")
					}
				}
			}
			send()
			answer := append(make([]byte, headroom), datagram(t, net.ParseIP(ends[1]), net.ParseIP(ends[0]))...)
			for _, q := range []int{3, 0, 2, 1} {
				_, err := devs[q].Write([][]byte{answer}, headroom)
				require.NoError(t, err)
				require.Equal(t, q, send())
			}
		})
	}
}

// An interface that is down takes nothing and brings nothing; up again it does, with the same device.
func TestDownAndUpAgain(t *testing.T) {
	n := namespace(t)
	d := open(t, n, &tun.Config{Addrs: prefixes("10.81.0.1/24")}, 1)[0]
	all := arrivals([]*tun.Device{d})
	answer := append(make([]byte, headroom), datagram(t, net.ParseIP("10.81.0.2"), net.ParseIP("10.81.0.1"))...)
	up := func(b bool) {
		require.NoError(t, n.Do(func() error { return rtnl.SetUp(d.Index(), b) }))
	}
	for range 2 {
		up(false)
		_, err := d.Write([][]byte{answer}, headroom)
		require.Error(t, err)
		require.NotErrorIs(t, err, os.ErrClosed)
		up(true)
		_, err = d.Write([][]byte{answer}, headroom)
		require.NoError(t, err)
		c, err := n.DialContext(t.Context(), "udp", "10.81.0.2:9")
		require.NoError(t, err)
		_, err = c.Write([]byte("again"))
		require.NoError(t, err)
		for deadline := time.After(20 * time.Second); ; {
			select {
			case a := <-all:
				if len(a.p) < 5 || string(a.p[len(a.p)-5:]) != "again" {
					continue // the kernel's own
				}
			case <-deadline:
				require.FailNow(t, "nothing came")
			}
			break
		}
		require.NoError(t, c.Close())
	}
	require.EqualValues(t, 2, d.Stats().Down)
}
