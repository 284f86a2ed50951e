package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/internal/testenv"
)

// TestAdminMoves: where the admin interface is called, by whom and by which names changes while it is called and packets flow; what is under way by a
// door that is closed ends as it would have.
func TestAdminMoves(t *testing.T) {
	dir := testenv.SocketDir(t)
	path := func(name string) string { return filepath.Join(dir, name) }
	selfSigned(t, path("cert"), path("key"), "lb1.example.net")
	for _, name := range []string{"token", "other"} {
		require.NoError(t, os.WriteFile(path(name), []byte(name+"-0123456789abcdef\n"), 0o600))
	}
	x := newInProcess(t, "admin: {socket: "+path("a")+"}\n"+reloadFile)
	defer func() { x.exporting.close() }()
	began, release := make(chan struct{}), make(chan struct{})
	var err error
	x.admin, err = openAdmin(x.conf.Admin, x.log, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/long" {
			close(began)
			select {
			case <-release:
			case <-r.Context().Done():
			}
		}
		reply(w, map[string]bool{"over": true})
	}))
	require.NoError(t, err)
	running := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { running <- x.admin.run(ctx) }()
	by := func(c client, path string) error { return c.call(t.Context(), http.MethodGet, path, nil, nil) }
	become := func(admin string) error {
		t.Helper()
		c, err := decode([]byte("admin: " + admin + "\n" + reloadFile))
		require.NoError(t, err)
		x.mu.Lock()
		defer x.mu.Unlock()
		return x.apply(c)
	}
	over := func() string {
		x.admin.mu.Lock()
		defer x.admin.mu.Unlock()
		return x.admin.tcp.l.Addr().String()
	}
	node := x.ask(t, "192.0.2.53", 40000)

	require.NoError(t, by(client{socket: path("a")}, "/"))
	long := make(chan error, 1)
	go func() { long <- by(client{socket: path("a")}, "/long") }()
	<-began
	withTCP := fmt.Sprintf("{socket: %s, listen: '127.0.0.1:0', certificate: %s, key: %s, token-file: %s}", path("b"), path("cert"), path("key"), path("token"))
	require.NoError(t, become(withTCP))
	require.NoFileExists(t, path("a"))
	require.NoError(t, by(client{socket: path("b")}, "/"))
	tcp := client{url: "https://" + over(), tokenFile: path("token"), ca: path("cert")}
	require.NoError(t, by(tcp, "/api"))
	close(release)
	require.NoError(t, <-long, "what was under way by the former door")

	// Names and the token, by the same doors.
	named := func(c client) error {
		c.url = strings.Replace(c.url, "127.0.0.1", "localhost", 1)
		return by(c, "/api")
	}
	require.NoError(t, named(tcp))
	was := over()
	require.NoError(t, become(strings.Replace(withTCP, path("token"), path("other")+", names: [lb1.example.net]", 1)))
	require.Equal(t, was, over())
	require.ErrorContains(t, by(tcp, "/api"), "Authorization: Bearer TOKEN")
	tcp.tokenFile = path("other")
	require.NoError(t, by(tcp, "/api"))
	require.Equal(t, []string{"lb1.example.net"}, x.admin.conf.Load().Names)

	// What is refused leaves no door behind, whether it is about the interface or not.
	c := func(from, to string) string {
		return strings.Replace(strings.Replace(withTCP, path("b"), path("c"), 1), from, to, 1)
	}
	require.ErrorContains(t, become(c(path("cert"), path("none"))), "certificate")
	require.ErrorContains(t, become(c("127.0.0.1:0", was)), "admin: listen tcp")
	x.refuse = os.ErrPermission
	require.ErrorIs(t, become(c("x", "y")), os.ErrPermission)
	x.refuse = nil
	require.NoFileExists(t, path("c"))
	require.NoError(t, by(client{socket: path("b")}, "/"))
	require.NoError(t, by(tcp, "/api"))

	require.NoError(t, become("{socket: "+path("b")+"}"))
	_, err = net.Dial("tcp", was)
	require.Error(t, err)
	require.NoError(t, by(client{socket: path("b")}, "/"))
	require.NoError(t, become("{socket: none}"))
	require.NoFileExists(t, path("b"))
	require.NoError(t, become("{socket: "+path("a")+"}"))
	require.NoError(t, by(client{socket: path("a")}, "/"))
	require.Equal(t, node, x.ask(t, "192.0.2.53", 40000))

	cancel()
	select {
	case err := <-running:
		assert.NoError(t, err)
	case <-time.After(30 * time.Second):
		t.Fatal("it does not end")
	}
	x.admin.close()
	require.NoFileExists(t, path("a"))
}

// TestAddressesMove: tunnels begin at the balancer's new address after a reload, and their sessions stay.
func TestAddressesMove(t *testing.T) {
	text := strings.Replace(reloadFile, "    metric: roundrobin\n", "    metric: roundrobin\n    forward: tunnel\n", 1)
	x := newInProcess(t, text)
	defer func() { x.exporting.close() }()
	outer := func() (src, dst string) {
		t.Helper()
		ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: net.IPv4(198, 51, 100, 7), DstIP: net.IPv4(192, 0, 2, 53)}
		udp := &layers.UDP{SrcPort: 40000, DstPort: 53}
		require.NoError(t, udp.SetNetworkLayerForChecksum(ip))
		b := gopacket.NewSerializeBuffer()
		require.NoError(t, gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ip, udp, gopacket.Payload("question")))
		out := x.plane.Process(time.Now(), [][]byte{append(make([]byte, dataplane.ReadOffset), b.Bytes()...)}, []int{len(b.Bytes())}, dataplane.ReadOffset, nil)
		require.Len(t, out, 1)
		flow := gopacket.NewPacket(out[0][dataplane.Headroom:], layers.LayerTypeIPv4, gopacket.Default).NetworkLayer().NetworkFlow()
		return flow.Src().String(), flow.Dst().String()
	}
	src, node := outer()
	require.Equal(t, "10.0.0.254", src)
	for _, addrs := range []string{`10.0.0.253, "2001:db8::fd"`, "10.0.0.252", `"2001:db8::fe", 10.0.0.251`} {
		c, err := decode([]byte(strings.Replace(text, `10.0.0.254, "2001:db8::fe"`, addrs, 1)))
		require.NoError(t, err)
		require.Empty(t, fixedChanges(x.conf, c))
		x.refuse = os.ErrPermission
		require.ErrorIs(t, x.apply(c), os.ErrPermission)
		was, _ := outer()
		require.Equal(t, src, was)
		x.refuse = nil
		require.NoError(t, x.apply(c))
		var dst string
		src, dst = outer()
		require.Contains(t, addrs, src)
		require.Equal(t, node, dst)
	}
	_, err := decode([]byte(strings.Replace(text, "10.0.0.254, ", "", 1)))
	require.ErrorContains(t, err, "addresses")
}
