package dataplane_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/dataplane/splice"
	"github.com/lbprim/lbprim/internal/testenv"
	"github.com/lbprim/lbprim/policy/l7"
)

// tcpInfo is what the kernel says of a connection.
func tcpInfo(c net.Conn) (info *unix.TCPInfo, err error) {
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		return nil, err
	}
	if e := raw.Control(func(fd uintptr) { info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) }); e != nil {
		return nil, e
	}
	return info, err
}

// Options that were agreed on, as tcpInfo has them.
const (
	optTimestamps = 1 << iota
	optSACK
	optScale
	allOptions = optTimestamps | optSACK | optScale
)

// Both ends agree on what both have, of all that SYNs can say, and send segments that the other takes; a server that lacks what the client was promised is
// passed over.
func TestDelayedOptionsOfKernels(t *testing.T) {
	w := newWorld(t, how{})
	ends := make(chan *unix.TCPInfo, 2)
	const port = 7400
	for _, v6 := range []bool{false, true} {
		for i := range 2 {
			ln, err := w.servers[i].Listen(context.Background(), "tcp", netip.AddrPortFrom(waddr(v6, byte(1+i), 2), port).String())
			require.NoError(t, err)
			testenv.Accept(t, ln, func(c net.Conn) {
				got, err := io.ReadAll(c)
				if err != nil {
					return
				}
				info, err := tcpInfo(c)
				if err != nil {
					return
				}
				ends <- info
				sum := sha256.Sum256(got)
				_, _ = c.Write(append(sum[:], bytes.Repeat([]byte{byte(i)}, 100_000)...))
			})
		}
	}
	set := func(client bool, name string, on bool) {
		ns := w.client
		if !client {
			ns = w.servers[0]
		}
		require.NoError(t, ns.Sysctl("net.ipv4.tcp_"+name, map[bool]string{false: "0", true: "1"}[on]))
	}
	for _, c := range []struct {
		name   string
		client string // it lacks
		server string // server 0 lacks
		offer  splice.Offer
		want   uint8
		only   bool // server 1 is to be chosen
	}{
		{name: "all", want: allOptions},
		{name: "a client without SACK", client: "sack", want: optTimestamps | optScale},
		{name: "a client without scaling", client: "window_scaling", want: optTimestamps | optSACK},
		{name: "a client without timestamps", client: "timestamps"},
		{name: "a server without timestamps", server: "timestamps", want: allOptions, only: true},
		{name: "a server without SACK", server: "sack", want: allOptions, only: true},
		{name: "a server without scaling", server: "window_scaling", want: allOptions, only: true},
		{name: "no timestamps on offer", offer: splice.Offer{NoTimestamps: true}},
		{name: "no SACK on offer, and the server has none", server: "sack", offer: splice.Offer{NoSACK: true}, want: optTimestamps | optScale},
		{name: "another scale, smaller segments", offer: splice.Offer{Scale: 2, MSS: 1000}, want: allOptions},
		{name: "the largest scale", offer: splice.Offer{Scale: 14}, want: allOptions},
	} {
		t.Run(c.name, func(t *testing.T) {
			for name, client := range map[string]bool{c.client: true, c.server: false} {
				if name != "" {
					set(client, name, false)
					defer set(client, name, true)
				}
			}
			w.delay(t, func(s *dataplane.Service, _ bool) { s.Mode, s.Delay.Offer = clienttable.ServerPerSession, c.offer })
			for _, v6 := range []bool{false, true} {
				for k := range 4 {
					rng := rand.New(rand.NewPCG(uint64(k), 5))
					mine, theirs, from := w.exchange(t, v6, port, rng.IntN(300_000), rng, ends)
					for side, info := range map[string]*unix.TCPInfo{"client": mine, "server": theirs} {
						require.Equal(t, c.want, info.Options&allOptions, side)
						most := 1460
						if c.offer.MSS != 0 && side == "client" {
							most = int(c.offer.MSS)
						}
						if v6 {
							most = min(most, 1440)
						}
						if c.want&optTimestamps != 0 {
							most -= 12
						}
						require.LessOrEqual(t, int(info.Snd_mss), most, side)
						require.Greater(t, int(info.Snd_mss), most-61, "%s: not less than the classes of cookies make it", side)
					}
					if c.only {
						require.EqualValues(t, 1, from)
					}
				}
			}
		})
	}
}

// exchange sends n bytes, and checks the digest in the answer. It returns what both kernels say, and the server's number.
func (w *world) exchange(t *testing.T, v6 bool, port uint16, n int, rng *rand.Rand, ends chan *unix.TCPInfo) (mine, theirs *unix.TCPInfo, from byte) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := w.client.DialContext(ctx, "tcp", netip.AddrPortFrom(wvip(v6), port).String())
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.SetDeadline(time.Now().Add(time.Minute)))
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(rng.Uint32())
	}
	_, err = c.Write(data)
	require.NoError(t, err)
	require.NoError(t, c.(*net.TCPConn).CloseWrite())
	got, err := io.ReadAll(c)
	require.NoError(t, err)
	want := sha256.Sum256(data)
	require.Len(t, got, len(want)+100_000)
	require.Equal(t, want[:], got[:len(want)])
	mine, err = tcpInfo(c)
	require.NoError(t, err)
	return mine, <-ends, got[len(got)-1]
}

// A server that never answers is passed over, whichever way of translation.
func TestDelayedBindingPassesSilentServers(t *testing.T) {
	w := newWorld(t, how{})
	for _, route := range [][]string{{"10.70.0.0/24"}, {"-6", "fd70::/64"}} { // to the client, for NAT
		output(t, w.servers[0], "ip", append(append(route[:len(route)-1:len(route)-1], "route", "add", "blackhole"), route[len(route)-1])...)
	}
	for _, full := range []bool{false, true} {
		w.delay(t, func(s *dataplane.Service, v6 bool) {
			s.Mode, s.Delay.Limits.ServerTime = clienttable.ServerPerSession, 500*time.Millisecond
			if full {
				s.Forward, s.Locals = dataplane.FullNAT, []netip.Addr{wvip2(v6)}
			}
		})
		for _, v6 := range []bool{false, true} {
			port := uint16(7410)
			if full {
				port++
				to := netip.PrefixFrom(wvip2(v6), wvip2(v6).BitLen())
				output(t, w.servers[0], "ip", "route", "add", "blackhole", to.String())
			}
			w.digest(t, 0, v6, port, 10)
			w.digest(t, 1, v6, port, 10)
			before := w.refused(v6)
			for k := range 4 {
				from, err := w.upload(v6, port, 10000, 10, rand.New(rand.NewPCG(uint64(k), 6)))
				require.NoError(t, err)
				require.Equal(t, 1, from)
			}
			require.NotZero(t, w.refused(v6)-before, "turns are taken: the silent one was asked")
		}
	}
}

// refused is how often server 0 did not take a connection.
func (w *world) refused(v6 bool) uint64 {
	for _, n := range w.plane.Nodes() {
		if n.Name == fmt.Sprintf("server0-%v", v6) {
			return n.Refused
		}
	}
	return 0
}

// Clients that hesitate and readers that pause: keep-alive probes are answered while the balancer collects and behind the splice, and windows close and
// open at both ends.
func TestDelayedPauses(t *testing.T) {
	w := newWorld(t, how{limits: splice.Limits{Time: time.Minute}})
	w.farms(t, dataplane.ReadHTTP, &l7.Config{Default: farm("a")})
	const port, n = 7420, 3 << 20
	for _, v6 := range []bool{false, true} {
		t.Run(map[bool]string{false: "IPv4", true: "IPv6"}[v6], func(t *testing.T) {
			t.Parallel()
			ln, err := w.servers[0].Listen(context.Background(), "tcp", netip.AddrPortFrom(waddr(v6, 1, 2), port).String())
			require.NoError(t, err)
			read := make(chan struct{})
			testenv.Accept(t, ln, func(c net.Conn) {
				<-read // the window closes
				h := sha256.New()
				if _, err := io.CopyN(h, c, n); err != nil {
					return
				}
				_, _ = c.Write(append(h.Sum(nil), bytes.Repeat([]byte{'x'}, n)...))
			})
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			d := &net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 3}}
			c, err := w.client.DialWith(ctx, d, "tcp", netip.AddrPortFrom(wvip(v6), port).String())
			require.NoError(t, err)
			defer c.Close()
			require.NoError(t, c.SetDeadline(time.Now().Add(time.Minute)))
			data := bytes.Repeat([]byte("0123456789abcde\n"), n/16)
			copy(data, "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n")
			idle := func() { // until probes were answered: each is a segment that is acknowledged
				before, err := tcpInfo(c)
				require.NoError(t, err)
				require.Eventually(t, func() bool {
					now, err := tcpInfo(c)
					return err == nil && now.Segs_in >= before.Segs_in+2
				}, 30*time.Second, 20*time.Millisecond)
			}
			_, err = c.Write(data[:20])
			require.NoError(t, err)
			idle()
			wrote := make(chan error, 1)
			go func() {
				_, err := c.Write(data[20:])
				wrote <- err
			}()
			stalled := func() { // nothing moves for as long as it takes to probe a window
				last, since := uint64(0), time.Now()
				require.Eventually(t, func() bool {
					now, err := tcpInfo(c)
					if err != nil {
						return false
					}
					if at := now.Bytes_acked + now.Bytes_received; at != last {
						last, since = at, time.Now()
					}
					return last > 10000 && time.Since(since) > 700*time.Millisecond
				}, 30*time.Second, 20*time.Millisecond)
			}
			stalled()
			close(read)
			require.NoError(t, <-wrote)
			stalled() // by the server's answer, now
			got := make([]byte, sha256.Size+n)
			_, err = io.ReadFull(c, got)
			require.NoError(t, err)
			want := sha256.Sum256(data)
			require.Equal(t, want[:], got[:len(want)])
			require.Equal(t, n, bytes.Count(got[len(want):], []byte{'x'}))
			_ = c.(*net.TCPConn).SetLinger(0)
		})
	}
}
