package dataplane_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/internal/testenv"
)

// TestNetnsModes has kernels talk through every way of forwarding but NAT, which has tests of its own, and DSR, which needs frames:
// many connections at once, datagrams of any size, and echo requests with and without fragments. Servers behind tunnels open
// them, of either family in either, and answer past the balancer.
func TestNetnsModes(t *testing.T) {
	ping := testenv.NeedServers(t, "ping")[0]
	type variant struct {
		name    string
		forward dataplane.Forward
		tunnel  dataplane.Tunnel
		cross   bool // the nodes are of the other family
	}
	variants := []variant{{"full NAT", dataplane.FullNAT, dataplane.Tunnel{}, false}}
	for _, tunnel := range []dataplane.Tunnel{{}, {Kind: dataplane.GRE}, {Kind: dataplane.GRE, Key: 7}, {Kind: dataplane.GUE, Port: 6080}, {Kind: dataplane.VXLAN, Key: 77, Port: 4789, NodeMAC: vxlanMAC}} {
		for _, cross := range []bool{false, true} {
			variants = append(variants, variant{fmt.Sprintf("%v, other family %v", tunnel, cross), dataplane.Tunnelled, tunnel, cross})
		}
	}
	for _, c := range variants {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, how{
				routers: true, own: []netip.Addr{waddr(false, 20, 1), waddr(true, 20, 1)}, past: true,
				routes: []netip.Prefix{netip.PrefixFrom(wlocal(false), 32), netip.PrefixFrom(wlocal(true), 128)},
				outer6: func(v6 bool) bool { return v6 != c.cross },
				service: func(s *dataplane.Service, v6 bool) {
					if s.Forward, s.Tunnel = c.forward, c.tunnel; c.forward == dataplane.FullNAT {
						s.Locals = []netip.Addr{wlocal(v6)}
					}
				},
			})
			direct := c.forward == dataplane.Tunnelled
			for i := range w.servers {
				if direct {
					w.decapsulate(t, i, c.tunnel)
				}
			}
			for _, v6 := range []bool{false, true} {
				for i := range w.servers {
					w.serveAt(t, i, w.end(i, v6, direct), 5020)
				}
				errs := make(chan error)
				const connections = 8
				for range connections {
					go func() { errs <- w.bulk(v6, 5020, 100_000) }()
				}
				for range connections {
					require.NoError(t, <-errs, "IPv6 %v", v6)
				}
				for i := range w.servers {
					if !direct { // hairpins: servers are clients, too, each other's and their own
						require.NoError(t, w.hairpins(i, v6, 5020), "IPv6 %v", v6)
					}
				}
				for i := range w.servers {
					w.echoAt(t, i, w.end(i, v6, direct), 5021)
				}
				for _, size := range []int{10, 1400, 5000, 30000} {
					require.NoError(t, w.askOnce(v6, 5021, size), "IPv6 %v, %d bytes", v6, size)
				}
				family := map[bool]string{false: "-4", true: "-6"}[v6]
				for _, size := range []int{56, 1400, 1452, 5000} { // 1452 bytes do not fit into any tunnel
					out := must(t, w.client, ping, family, "-n", "-c", "1", "-W", "20", "-M", "dont", "-s", strconv.Itoa(size), wvip(v6).String())
					require.Contains(t, out, " 1 received", size)
				}
				// Nothing of what servers send by themselves has passed the device where they answer past it.
				for s := range w.plane.Sessions() {
					require.Equal(t, direct, s.Direct())
					if direct {
						require.Zero(t, s.Out.Packets)
					}
				}
			}
		})
	}
}

// hairpins has server i connect to the virtual address, often enough to meet every server.
func (w *world) hairpins(i int, v6 bool, port uint16) error {
	seen := map[byte]bool{}
	data := bytes.Repeat([]byte("to and fro"), 10_000)
	for range w.servers {
		err := func() error {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			c, err := w.servers[i].DialContext(ctx, "tcp", netip.AddrPortFrom(wvip(v6), port).String())
			if err != nil {
				return err
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(60 * time.Second))
			sent := make(chan error, 1)
			go func() {
				_, err := c.Write(data)
				sent <- err
			}()
			got := make([]byte, 1+len(data))
			if _, err := io.ReadFull(c, got); err != nil {
				return errors.Join(err, <-sent)
			}
			seen[got[0]] = true
			if !bytes.Equal(got[1:], data) {
				return errors.New("other bytes came back than were sent")
			}
			return <-sent
		}()
		if err != nil {
			return fmt.Errorf("server %d: %w", i, err)
		}
	}
	if len(seen) != len(w.servers) {
		return fmt.Errorf("server %d met only %v", i, seen)
	}
	return nil
}

// end is the address at which a server listens.
func (w *world) end(i int, v6, direct bool) netip.Addr {
	if direct {
		return wvip(v6)
	}
	return waddr(v6, byte(1+i), 2)
}

// echoAt has server i send datagrams to it back.
func (w *world) echoAt(t *testing.T, i int, a netip.Addr, port uint16) {
	t.Helper()
	p, err := w.servers[i].ListenPacket(context.Background(), "udp", netip.AddrPortFrom(a, port).String())
	require.NoError(t, err)
	t.Cleanup(func() { p.Close() })
	go func() {
		b := make([]byte, 65536)
		for {
			n, from, err := p.ReadFrom(b)
			if err != nil {
				return
			}
			p.WriteTo(b[:n], from)
		}
	}()
}

// askOnce sends a datagram of n bytes and wants it back, several times if need be.
func (w *world) askOnce(v6 bool, port uint16, n int) error {
	c, err := w.client.DialContext(context.Background(), "udp", netip.AddrPortFrom(wvip(v6), port).String())
	if err != nil {
		return err
	}
	defer c.Close()
	sent, got := make([]byte, n), make([]byte, 65536)
	for i := range sent {
		sent[i] = byte(i * 7)
	}
	for deadline := time.Now().Add(20 * time.Second); ; {
		if _, err = c.Write(sent); err == nil { // else it does not fit, as an error has told the kernel
			c.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
			var k int
			if k, err = c.Read(got); err == nil {
				if string(got[:k]) != string(sent) {
					return fmt.Errorf("%d bytes came back, not the %d sent", k, n)
				}
				return nil
			}
		}
		if time.Now().After(deadline) {
			return err
		}
	}
}
