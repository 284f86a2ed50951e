package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/examples/internal/rig"
)

// natFile is the file of the first balancer with nodes behind NAT: peers, and how packets reach nodes, are to be filled in.
const natFile = `version: 1
seed: 4711
source: [10.7.1.2, "fd07:1::2"]
status: "[::]:9180"
linger: 1s
device: {networks: [10.7.100.0/24, "fd07:100::/64"], interfaces: [eth0]}
damping: {announce-after: 100ms, suppress: 100000, longest: 24h}
bgp:
  as: 64512
  router-id: 10.7.1.2
  hold-time: 6s
  peers: [%s]
farms:
  v4:
    forward: %s
    check: {method: http, port: 80, interval: 200ms, timeout: 5s, fall: 2}
    nodes: [{name: server0, address: "10.7.11.2:7"}, {name: server1, address: "10.7.12.2:7"}]
  v6:
    forward: %s
    check: {method: http, port: 80, interval: 200ms, timeout: 5s, fall: 2}
    nodes: [{name: server0, address: "[fd07:11::2]:7"}, {name: server1, address: "[fd07:12::2]:7"}]
vips:
  - {address: 10.7.100.1, services: [{name: echo4, protocol: tcp, port: 77, farm: v4}]}
  - {address: "fd07:100::1", services: [{name: echo6, protocol: tcp, port: 77, farm: v6}]}
`

// TestNATBehindMultihopSessions: routers that are further away than the next link, with which sessions are signed (TCP MD5, RFC 2385); and nodes
// that answer through the balancer, by NAT and by full NAT.
func TestNATBehindMultihopSessions(t *testing.T) {
	s := newSite(t)
	// Answers of servers go to the balancer: its interface to them is in truth the router.
	rig.Shell(t, s.router, `
for n in 11 12; do
  ip rule add from 10.7.$n.2 lookup 99; ip -6 rule add from fd07:$n::2 lookup 99
done
ip route add 10.7.0.0/24 via 10.7.1.2 table 99; ip route add 10.7.100.0/24 via 10.7.1.2 table 99
ip route add 10.7.0.0/16 via 10.7.1.2 table 98
ip -6 route add fd07::/64 via fd07:1::2 table 99; ip -6 route add fd07:100::/64 via fd07:1::2 table 99
ip rule add from 10.7.11.2 to 10.7.1.0/24 lookup main priority 1; ip rule add from 10.7.12.2 to 10.7.1.0/24 lookup main priority 1
`)
	// The router's addresses on the client's side are two hops away.
	multihop := `{address: 10.7.0.1, as: 64500, local: 10.7.1.2, hops: 2%[1]s}, {address: "fd07:0::1", as: 64500, local: "fd07:1::2", hops: 2%[1]s}`
	write := func(secret, forward4, forward6 string) {
		text := fmt.Sprintf(natFile, fmt.Sprintf(multihop, secret), forward4, forward6)
		require.NoError(t, os.WriteFile(s.file(0)+".new", []byte(text), 0o600))
		require.NoError(t, os.Rename(s.file(0)+".new", s.file(0)))
	}
	const reloaded = "configuration reloaded"
	secret := ""
	if md5(t, s) {
		secret = ", password: " + sitePassword
	} else {
		t.Log("this kernel has no TCP MD5 signatures: without them")
	}
	write(secret, "nat", "nat")
	s.bird(t)
	p := s.balance(t, 0)
	s.await(t, 1, siteVIPs[:2]...)
	chat := func() {
		t.Helper()
		served := map[string]int{}
		for _, vip := range siteVIPs[:2] {
			for range 16 { // by their hashes, one in 2^31 times all go to one server
				c, server, err := s.dialPort(t, vip, "77", patience)
				require.NoError(t, err, "%s\n%v", vip, p.Log)
				f := &flow{Conn: c, vip: vip, server: server}
				require.NoError(t, f.chat())
				require.NoError(t, f.chat())
				c.Close()
				served[server]++
			}
		}
		require.Len(t, served, 2)
		require.NotContains(t, served, "server 2")
	}
	chat()
	for _, router := range []string{"10.7.0.1", "fd07::1"} {
		require.Eventually(t, func() bool { return strings.Contains(p.Log.String(), `"BGP session established" router=`+router+" ") }, patience, retry, "%v", p.Log)
	}
	// Another password: the router hears nothing that it believes, and forgets the routes.
	if secret != "" {
		write(", password: not-the-same", "nat", "nat")
		s.await(t, 0, siteVIPs[:2]...)
		write(secret, "nat", "nat")
		s.await(t, 1, siteVIPs[:2]...)
	}
	// Full NAT: servers see an address of the balancer's, so that nothing but its routes brings answers back.
	rig.Shell(t, s.router, "ip rule del from 10.7.11.2 lookup 99; ip rule del from 10.7.12.2 lookup 99; ip -6 rule del from fd07:11::2 lookup 99; ip -6 rule del from fd07:12::2 lookup 99\n"+
		"ip route add 10.7.100.200 via 10.7.1.2; ip -6 route add fd07:100::200 via fd07:1::2")
	reloads := strings.Count(p.Log.String(), reloaded)
	write(secret, "fullnat\n    locals: [10.7.100.200]", "fullnat\n    locals: [\"fd07:100::200\"]")
	require.Eventually(t, func() bool { return strings.Count(p.Log.String(), reloaded) > reloads }, patience, retry, "%v", p.Log)
	chat()
}

// md5 reports whether the router's kernel signs.
func md5(t *testing.T, s *site) bool {
	t.Helper()
	return !strings.Contains(rig.Shell(t, s.router, `python3 - 2>&1 <<'END' || true
import socket, struct
s = socket.socket()
a = struct.pack("=HHI", socket.AF_INET, 0, 0x01020304).ljust(128, b"\0")
s.setsockopt(socket.IPPROTO_TCP, 14, a + struct.pack("=BBHi", 0, 0, 6, 0) + b"secret".ljust(80, b"\0"))
END
`), "Error")
}
