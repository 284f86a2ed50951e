package dataplane_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/dataplane/tun"
	"github.com/lbprim/lbprim/internal/rtnl"
)

// vxlanMAC is that of every server's end of a VXLAN.
var vxlanMAC = [6]byte{2, 0, 0, 0, 0, 9}

// decapsulate gives a host the virtual addresses, without a word on its links, and has it open tunnels to its address. The kernel
// opens VXLAN; the others are opened here, as few kernels have them all: the outer packets come by sockets, put
// together if they were in fragments, and the inner ones go to the kernel by a TUN interface.
func (w *world) decapsulate(t *testing.T, i int, tunnel dataplane.Tunnel) {
	t.Helper()
	host := w.servers[i]
	for _, s := range [][2]string{{"net.ipv4.conf.all.rp_filter", "0"}, {"net.ipv4.conf.default.rp_filter", "0"}} {
		require.NoError(t, host.Sysctl(s[0], s[1]))
	}
	require.NoError(t, host.Do(func() error {
		lo, err := rtnl.Index("lo")
		for _, v6 := range []bool{false, true} {
			if err == nil {
				err = rtnl.AddAddr(lo, netip.PrefixFrom(wvip(v6), wvip(v6).BitLen()))
			}
		}
		return err
	}))
	if tunnel.Kind == dataplane.VXLAN {
		for k, v6 := range []bool{false, true} {
			name := fmt.Sprint("vx", k)
			must(t, host, "ip", "link", "add", name, "address", net.HardwareAddr(vxlanMAC[:]).String(), "type", "vxlan", "id", fmt.Sprint(tunnel.Key), "dstport", fmt.Sprint(tunnel.Port), "local", waddr(v6, byte(1+i), 2).String(), "nolearning")
			must(t, host, "ip", "link", "set", name, "up")
		}
		return
	}
	var inner *tun.Device
	require.NoError(t, host.Do(func() (err error) { inner, err = tun.Open(nil); return err }))
	t.Cleanup(func() { inner.Close() })
	for _, v6 := range []bool{false, true} {
		a := waddr(v6, byte(1+i), 2)
		var sockets []string
		switch fam := map[bool]string{false: "ip4:", true: "ip6:"}[v6]; tunnel.Kind {
		case dataplane.IPIP:
			sockets = []string{fam + "4", fam + "41"}
		case dataplane.GRE:
			sockets = []string{fam + "47"}
		case dataplane.GUE:
			sockets = []string{"udp"}
		}
		for _, network := range sockets {
			at := a.String()
			if network == "udp" {
				at = netip.AddrPortFrom(a, tunnel.Port).String()
			}
			p, err := host.ListenPacket(context.Background(), network, at)
			require.NoError(t, err)
			t.Cleanup(func() { p.Close() })
			go func() {
				b := make([]byte, 70000)
				for {
					n, _, err := p.ReadFrom(b[dataplane.Headroom:])
					if err != nil {
						return
					}
					if h := openTunnel(b[dataplane.Headroom:dataplane.Headroom+n], tunnel); h >= 0 {
						clear(b[h : dataplane.Headroom+h])
						inner.Write([][]byte{b[h : dataplane.Headroom+n]}, dataplane.Headroom)
					}
				}
			}()
		}
	}
}

// openTunnel returns where the inner packet begins behind the outer IP header, or -1.
func openTunnel(b []byte, tunnel dataplane.Tunnel) int {
	switch tunnel.Kind {
	case dataplane.GRE:
		switch {
		case len(b) < 8 || b[0]&^0x20 != 0 || b[1] != 0 || b[0]&0x20 != 0 != (tunnel.Key != 0):
			return -1
		case tunnel.Key == 0:
			return 4
		case binary.BigEndian.Uint32(b[4:]) != tunnel.Key:
			return -1
		}
		return 8
	case dataplane.GUE:
		if len(b) < 4 || b[0] != 0 || b[1] != 4 && b[1] != 41 || b[2]|b[3] != 0 {
			return -1
		}
		return 4
	}
	return 0
}
