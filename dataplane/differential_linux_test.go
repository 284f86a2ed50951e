package dataplane

import (
	"bytes"
	"encoding/binary"
	"errors"
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
		type input struct {
			name    string
			packets [][]byte // in this order
		}
		one := func(name string, b []byte) input { return input{name, [][]byte{b}} }
		long := strings.Repeat("0123456789", 400)
		inputs := []input{
			one("TCP SYN", tcp(from, vip, "S", 7, 0, "")), one("UDP", udp(from, vip, "hello")), one("echo", echo(fam.client, fam.vip, false, 77, 1, "ping")),
			{"fragments", split(udp(from, vip, long), 1400, 0x4321)},
			{"echo in fragments", split(echo(fam.client, fam.vip, false, 77, 2, long), 1400, 0x4322)},
			// What the client tells of the server's answers, as far as it quotes them.
			one("error about UDP", unreachable(fam.client, fam.vip, udp(vip, from, "an answer"), 28)),
			one("short error about UDP", unreachable(fam.client, fam.vip, udp(vip, from, "an answer"), 8)),
		}
		back := split(udp(from, vip, long), 1400, 0x4323)
		inputs = append(inputs, input{"fragments out of order", [][]byte{back[2], back[0], back[1]}})
		if fam.vip.Is4() {
			b := udp(ap(fam.client, 40001), vip, "no checksum")
			b[26], b[27] = 0, 0
			inputs = append(inputs, one("UDP without checksum", b))
		}
		// One whose checksum becomes zero, and so is sent as 0xffff.
		for i := range 1 << 16 {
			b := udp(from, vip, string([]byte{byte(i >> 8), byte(i)}))
			v, out := p.send(bytes.Clone(b))
			if v != Forwarded {
				continue // the builder of these tests sends a zero itself
			}
			_, w := parseFlow(out)
			if binary.BigEndian.Uint16(out[w.SumOff:]) == 0xffff {
				inputs = append(inputs, one("UDP checksum that becomes zero", b))
				break
			}
		}
		require.Equal(t, "UDP checksum that becomes zero", inputs[len(inputs)-1].name)
		for _, in := range inputs {
			name := in.name
			var mine [][]byte
			for _, b := range in.packets {
				if fam.vip.Is4() && len(in.packets) == 1 {
					binary.BigEndian.PutUint16(b[4:], 0x1234) // the kernel fills in a zero one
					b[10], b[11] = 0, 0
					binary.BigEndian.PutUint16(b[10:], wire.Checksum(b[:20]))
				}
				_, out := p.sendAll(bytes.Clone(b))
				mine = append(mine, out...)
			}
			require.Len(t, mine, len(in.packets), "%s: %v", name, p.drops())
			var to unix.Sockaddr = &unix.SockaddrInet6{Addr: fam.vip.As16()}
			if fam.vip.Is4() {
				to = &unix.SockaddrInet4{Addr: fam.vip.As4()}
			}
			for _, b := range in.packets {
				require.NoError(t, unix.Sendto(client, b, 0, to))
			}
			want := mine[0]
			if len(mine) > 1 {
				want = join(t, mine)
			}
			buf := make([]byte, 2048)
			var theirs [][]byte
			for end := time.Now().Add(20 * time.Second); ; {
				require.True(t, time.Now().Before(end), name)
				n, _, err := unix.Recvfrom(server, buf, 0)
				if errors.Is(err, unix.EAGAIN) {
					continue
				}
				require.NoError(t, err, name)
				if buf[0]>>4 != want[0]>>4 || !bytes.Contains(buf[8:24], fam.client.AsSlice()) || buf[0]>>4 == 6 && buf[6] == wire.ProtoICMPv6 && buf[40] >= 133 && buf[40] <= 137 {
					continue // the kernels' own
				}
				if theirs = append(theirs, bytes.Clone(buf[:n])); len(mine) == 1 {
					requireSameButTTL(t, name, want, theirs[0])
					break
				}
				// The kernel puts fragments together for translation, and may cut them elsewhere.
				total := 0
				for _, f := range theirs {
					_, v := parseFlow(f)
					total += int(v.End - v.L4)
				}
				if _, v := parseFlow(want); total >= int(v.End-v.L4) {
					requireSameButTTL(t, name, want, join(t, theirs))
					break
				}
			}
		}
	})
}
