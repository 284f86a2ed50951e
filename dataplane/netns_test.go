//go:build linux

package dataplane_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"

	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/dataplane/tun"
	"github.com/lbprim/lbprim/internal/rtnl"
)

// TestNetnsParallelTCP: 100 connections at a time, every byte compared.
func TestNetnsParallelTCP(t *testing.T) {
	families(t, func(t *testing.T, w *world, v6 bool) {
		for i := range w.servers {
			w.serve(t, i, v6, 5001)
		}
		const connections = 100
		size := 150_000
		if w.how.noOffload {
			size = 20_000 // in a hundred times as many packets
		}
		noise := make([]byte, connections*97+size)
		rng := rand.NewChaCha8([32]byte{1})
		_, _ = rng.Read(noise)
		var perServer [2]atomic.Int32
		errs := make(chan error, connections)
		for n := range connections {
			go func() {
				c, server, err := w.dial(v6, 5001)
				if err != nil {
					errs <- fmt.Errorf("dial: %w", err)
					return
				}
				defer c.Close()
				perServer[server].Add(1)
				data := noise[n*97 : n*97+size] // each connection's own
				sent := make(chan error, 1)
				go func() {
					_, err := c.Write(data)
					sent <- errors.Join(err, c.(*net.TCPConn).CloseWrite())
				}()
				got, err := io.ReadAll(c)
				if err == nil && !bytes.Equal(data, got) {
					err = fmt.Errorf("connection %d: %d bytes came back, not the %d sent", n, len(got), size)
				}
				errs <- errors.Join(err, <-sent)
			}()
		}
		for range connections {
			require.NoError(t, <-errs)
		}
		require.EqualValues(t, connections/2, perServer[0].Load())
		require.EqualValues(t, connections/2, perServer[1].Load())
	})
}

// TestNetnsUDP: datagrams of every size up to the MTU, each session by one server.
func TestNetnsUDP(t *testing.T) {
	families(t, func(t *testing.T, w *world, v6 bool) {
		for i := range w.servers {
			w.answer(t, i, v6, 5002)
		}
		var served [2]int
		for session := range 8 {
			c, err := w.client.DialContext(context.Background(), "udp", netip.AddrPortFrom(wvip(v6), 5002).String())
			require.NoError(t, err)
			defer c.Close()
			c.SetDeadline(time.Now().Add(20 * time.Second))
			server := -1
			for size := 0; size < 1400; size += 97 {
				sent := bytes.Repeat([]byte{byte(session + size)}, size)
				_, err := c.Write(sent)
				require.NoError(t, err)
				b := make([]byte, 2000)
				n, err := c.Read(b)
				require.NoError(t, err, "%d bytes", size)
				require.Equal(t, sent, b[1:n])
				require.True(t, server < 0 || server == int(b[0]), "one server a session")
				server = int(b[0])
			}
			served[server]++
		}
		require.Equal(t, [2]int{4, 4}, served)
	})
}

// TestNetnsICMP: an echo request through the VIP is answered by a server, and a server's error reaches
// the client's socket.
func TestNetnsICMP(t *testing.T) {
	families(t, func(t *testing.T, w *world, v6 bool) {
		network, typ, reply, proto := "ip4:icmp", icmp.Type(ipv4.ICMPTypeEcho), icmp.Type(ipv4.ICMPTypeEchoReply), 1
		if v6 {
			network, typ, reply, proto = "ip6:ipv6-icmp", ipv6.ICMPTypeEchoRequest, ipv6.ICMPTypeEchoReply, 58
		}
		var p *icmp.PacketConn
		require.NoError(t, w.client.Do(func() (err error) {
			p, err = icmp.ListenPacket(network, waddr(v6, 0, 2).String())
			return err
		}))
		defer p.Close()
		p.SetDeadline(time.Now().Add(20 * time.Second))
		for seq, size := range []int{0, 56, 1000, 1400} {
			data := bytes.Repeat([]byte{byte(seq)}, size)
			m := icmp.Message{Type: typ, Body: &icmp.Echo{ID: 77, Seq: seq, Data: data}}
			b, err := m.Marshal(nil)
			require.NoError(t, err)
			_, err = p.WriteTo(b, &net.IPAddr{IP: wvip(v6).AsSlice()})
			require.NoError(t, err)
			for {
				b := make([]byte, 2000)
				n, from, err := p.ReadFrom(b)
				require.NoError(t, err)
				m, err := icmp.ParseMessage(proto, b[:n])
				require.NoError(t, err)
				if m.Type != reply {
					continue // the kernel's own neighbour discovery
				}
				require.Equal(t, wvip(v6).String(), from.(*net.IPAddr).IP.String())
				e := m.Body.(*icmp.Echo)
				require.Equal(t, seq, e.Seq)
				require.Equal(t, 77, e.ID)
				require.Equal(t, data, append([]byte{}, e.Data...))
				break
			}
		}

		// Port unreachable, from a server without such a port.
		c, err := w.client.DialContext(context.Background(), "udp", netip.AddrPortFrom(wvip(v6), 5999).String())
		require.NoError(t, err)
		defer c.Close()
		for end := time.Now().Add(patience); ; { // kernels send so many errors a second, and no more
			c.SetDeadline(time.Now().Add(time.Second))
			if _, err = c.Write([]byte("anybody?")); err == nil {
				_, err = c.Read(make([]byte, 100))
			}
			if !errors.Is(err, os.ErrDeadlineExceeded) || time.Now().After(end) {
				break
			}
		}
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
	})
}

// TestNetnsServerKilledUnderLoad: while clients connect as fast as they can, a server dies. Once it is known to
// be down nobody is sent there, its connections are reset when their clients next speak, and those of the
// other server go on.
func TestNetnsServerKilledUnderLoad(t *testing.T) {
	families(t, func(t *testing.T, w *world, v6 bool) {
		var ls [2]*listener
		for i := range w.servers {
			ls[i] = w.serve(t, i, v6, 5003)
		}
		dead := w.nodes[v6][1].Name
		t.Cleanup(func() { w.plane.SetUp(dead, true) })

		open := map[int][]net.Conn{}
		for range 20 {
			c, server, err := w.dial(v6, 5003)
			require.NoError(t, err)
			defer c.Close()
			open[server] = append(open[server], c)
		}
		require.Len(t, open[0], 10)
		require.Len(t, open[1], 10)

		var known atomic.Bool // that it is dead
		var before, after, excused atomic.Int64
		ctx, stop := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		defer wg.Wait()
		defer stop()
		bad := make(chan error, 100)
		for range 4 {
			wg.Go(func() {
				for ctx.Err() == nil {
					told := known.Load() // before the SYN
					c, server, err := w.dial(v6, 5003)
					if err == nil {
						_, err = c.Write([]byte("x"))
						if err == nil {
							_, err = io.ReadFull(c, make([]byte, 1))
						}
						c.Close()
					}
					switch {
					case err != nil && told:
						bad <- err
						return
					case err != nil:
						excused.Add(1)
					case told && server == 1:
						bad <- errors.New("a connection went to the dead server")
						return
					case told:
						after.Add(1)
					default:
						before.Add(1)
					}
					runtime.Gosched()
				}
			})
		}
		wait := func(n *atomic.Int64, least int64) {
			for deadline := time.Now().Add(30 * time.Second); n.Load() < least; time.Sleep(5 * time.Millisecond) {
				require.True(t, time.Now().Before(deadline), "no progress: %d of %d", n.Load(), least)
				require.Empty(t, bad)
			}
		}
		wait(&before, 50)
		ls[1].Close()
		time.Sleep(20 * time.Millisecond)
		require.Positive(t, w.plane.SetUp(dead, false))
		known.Store(true)
		wait(&after, 100)
		stop()
		wg.Wait()
		require.Empty(t, bad)
		t.Logf("%d connections before, %d failed in the unnoticed moment, %d after", before.Load(), excused.Load(), after.Load())

		for _, c := range open[0] {
			_, err := c.Write([]byte("still here"))
			require.NoError(t, err)
			b := make([]byte, 10)
			_, err = io.ReadFull(c, b)
			require.NoError(t, err)
			require.Equal(t, "still here", string(b))
		}
		for _, c := range open[1] {
			_, err := c.Write([]byte("hello?"))
			if err == nil { // else a keep-alive probe was answered so
				_, err = c.Read(make([]byte, 1))
			}
			require.ErrorIs(t, err, syscall.ECONNRESET)
		}
	})
}

// crooked is a device that writes wrong checksums.
type crooked struct{ *tun.Device }

func (c crooked) Write(bufs [][]byte, offset int) (int, error) {
	for _, b := range bufs {
		p := b[offset:]
		switch {
		case p[0]>>4 == 4 && p[9] == 6:
			p[int(p[0]&15)*4+16] ^= 1
		case p[0]>>4 == 6 && p[6] == 6:
			p[40+16] ^= 1
		}
	}
	return c.Device.Write(bufs, offset)
}

// TestNetnsChecksumsAreVerified shows that these tests can fail: over cables without offloads no packet
// with a wrong checksum is believed.
func TestNetnsChecksumsAreVerified(t *testing.T) {
	w := newWorld(t, how{noOffload: true, wrap: func(d dataplane.Device) dataplane.Device { return crooked{d.(*tun.Device)} }})
	for _, v6 := range []bool{false, true} {
		w.serve(t, 0, v6, 5004)
		w.serve(t, 1, v6, 5004)
		written := func() (n uint64) {
			for _, d := range w.devices {
				n += d.Stats().Written
			}
			return n
		}
		before := written()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		dialled := make(chan error, 1)
		go func() {
			_, err := w.client.DialContext(ctx, "tcp", netip.AddrPortFrom(wvip(v6), 5004).String())
			dialled <- err
		}()
		until(t, func() bool { return len(dialled) > 0 || written() >= before+2 }) // it was not answered, and sent again
		cancel()
		require.Error(t, <-dialled)
	}
}

// TestNetnsServerFallsSilent: a host loses its power, so nothing of it ever answers. Its connections end by the
// balancer's resets, each in answer to its client's next packet, not by the clients' patience.
func TestNetnsServerFallsSilent(t *testing.T) {
	w := newWorld(t, how{})
	open := map[bool][]net.Conn{}
	for _, v6 := range []bool{false, true} {
		w.serve(t, 0, v6, 5005)
		w.serve(t, 1, v6, 5005)
		for range 4 {
			c, server, err := w.dial(v6, 5005)
			require.NoError(t, err)
			defer c.Close()
			open[server == 1] = append(open[server == 1], c)
		}
	}
	require.Len(t, open[true], 4)
	require.NoError(t, w.servers[1].Do(func() error {
		i, err := rtnl.Index("eth0")
		require.NoError(t, err)
		return rtnl.SetUp(i, false)
	}))
	for _, v6 := range []bool{false, true} {
		require.Positive(t, w.plane.SetUp(w.nodes[v6][1].Name, false))
		for range 5 {
			c, server, err := w.dial(v6, 5005)
			require.NoError(t, err)
			require.Zero(t, server)
			c.Close()
		}
	}
	for silent, conns := range open {
		for _, c := range conns {
			_, err := c.Write([]byte("x"))
			require.NoError(t, err)
			_, err = io.ReadFull(c, make([]byte, 1))
			if silent {
				require.ErrorIs(t, err, syscall.ECONNRESET)
			} else {
				require.NoError(t, err)
			}
		}
	}
	require.GreaterOrEqual(t, w.plane.Stats().Resets, uint64(4))
}
