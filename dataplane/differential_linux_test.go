package dataplane

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lbprim/lbprim/internal/netns"
	"github.com/lbprim/lbprim/internal/testenv"
	"github.com/lbprim/lbprim/internal/wire"
	"github.com/lbprim/lbprim/steering"
)

// TestDifferentialKernelDNAT gives the same packets to nftables' destination NAT and to a Plane, and compares what the server gets.
func TestDifferentialKernelDNAT(t *testing.T) {
	testenv.NeedNetns(t)
	nft := testenv.NeedServers(t, "nft")[0]
	var host [3]*netns.Namespace // client, router, server
	for i := range host {
		ns, err := netns.New()
		require.NoError(t, err)
		t.Cleanup(func() { ns.Close() })
		host[i] = ns
	}
	pre := netip.MustParsePrefix
	require.NoError(t, netns.Join(
		netns.End{NS: host[0], Name: "eth0", NoOffload: true, Addrs: []netip.Prefix{pre("192.0.2.7/24"), pre("2001:db8:c::7/64")}},
		netns.End{NS: host[1], Name: "c", NoOffload: true, Addrs: []netip.Prefix{pre("192.0.2.1/24"), pre("2001:db8:c::1/64")}}))
	require.NoError(t, netns.Join(
		netns.End{NS: host[2], Name: "eth0", NoOffload: true, Addrs: []netip.Prefix{pre("10.0.0.1/24"), pre("2001:db8:a::1/64")}},
		netns.End{NS: host[1], Name: "s", NoOffload: true, Addrs: []netip.Prefix{pre("10.0.0.254/24"), pre("2001:db8:a::fe/64")}}))
	require.NoError(t, host[0].DefaultVia(netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8:c::1")))
	require.NoError(t, host[1].Router())
	require.NoError(t, host[1].Do(func() error {
		c := exec.Command(nft, "-f", "-")
		c.Stdin = strings.NewReader(`table inet t { chain c { type nat hook prerouting priority dstnat;
			ip daddr 203.0.113.1 meta l4proto { tcp, udp } dnat ip to 10.0.0.1:8080
			ip daddr 203.0.113.1 dnat ip to 10.0.0.1
			ip6 daddr 2001:db8:f::1 meta l4proto { tcp, udp } dnat ip6 to [2001:db8:a::1]:8080
			ip6 daddr 2001:db8:f::1 dnat ip6 to 2001:db8:a::1
		}
		}`)
		out, err := c.CombinedOutput()
		require.NoError(t, err, string(out))
		return nil
	}))
	var server int
	require.NoError(t, host[2].Do(func() (err error) {
		server, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM, int(binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL})))
		return err
	}))
	t.Cleanup(func() { unix.Close(server) })
	require.NoError(t, unix.SetsockoptTimeval(server, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 3}))

	both(t, func(t *testing.T, fam family) {
		domain := unix.AF_INET
		if fam.vip.Is6() {
			domain = unix.AF_INET6
		}
		var client int
		require.NoError(t, host[0].Do(func() (err error) { client, err = unix.Socket(domain, unix.SOCK_RAW, unix.IPPROTO_RAW); return err }))
		defer unix.Close(client)
		p := newPlane(t, fam, func(c *Config, s *Service) {
			ids := new(steering.IDs)
			s.Pool = mustPool(t, ids, steering.RoundRobin, steering.Node{Name: "n", Addr: ap(fam.n1, 8080)})
			c.Policies = table(t, rule("tcp", fam.vip.String()+" tcp/80", s), rule("udp", fam.vip.String()+" udp/80", s), rule("rest", fam.vip.String(), s))
		})
		from, vip := ap(fam.client, 40000), ap(fam.vip, 80)
		packets := map[string][]byte{"TCP SYN": tcp(from, vip, "S", 7, 0, ""), "UDP": udp(from, vip, "hello"), "echo": echo(fam.client, fam.vip, false, 77, 1, "ping")}
		if fam.vip.Is4() {
			b := udp(ap(fam.client, 40001), vip, "no checksum")
			b[26], b[27] = 0, 0
			packets["UDP without checksum"] = b
		}
		for name, b := range packets {
			if fam.vip.Is4() {
				binary.BigEndian.PutUint16(b[4:], 0x1234) // the kernel fills in a zero one
				b[10], b[11] = 0, 0
				binary.BigEndian.PutUint16(b[10:], wire.Checksum(b[:20]))
			}
			v, mine := p.send(bytes.Clone(b))
			require.Equal(t, Forwarded, v, "%s: %v", name, p.drops())
			var to unix.Sockaddr = &unix.SockaddrInet6{Addr: fam.vip.As16()}
			if fam.vip.Is4() {
				to = &unix.SockaddrInet4{Addr: fam.vip.As4()}
			}
			require.NoError(t, unix.Sendto(client, b, 0, to))
			buf := make([]byte, 2048)
			for end := time.Now().Add(5 * time.Second); ; {
				require.True(t, time.Now().Before(end), name)
				n, _, err := unix.Recvfrom(server, buf, 0)
				require.NoError(t, err, name)
				if n == len(mine) && buf[0]>>4 == mine[0]>>4 && bytes.Contains(buf[8:24], fam.client.AsSlice()) {
					requireSameButTTL(t, name, mine, buf[:n])
					break
				}
			}
		}
	})
}
