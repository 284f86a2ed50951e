//go:build linux

package dataplane_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/dataplane"
	"github.com/lbprim/lbprim/dataplane/splice"
	"github.com/lbprim/lbprim/internal/testenv"
	"github.com/lbprim/lbprim/policy"
)

// delay puts services with delayed binding in force: one of each family, made by change.
func (w *world) delay(t testing.TB, change func(s *dataplane.Service, v6 bool)) {
	t.Helper()
	var rules []policy.Rule[*dataplane.Service]
	for _, v6 := range []bool{false, true} {
		name := fmt.Sprintf("all-%v", v6)
		s := &dataplane.Service{Name: name, Pool: w.pools[v6], Delay: &dataplane.Delay{}}
		change(s, v6)
		rules = append(rules, policy.Rule[*dataplane.Service]{Name: name, Match: policy.Match{Dst: netip.PrefixFrom(wvip(v6), wvip(v6).BitLen())}, Value: s})
	}
	table, err := policy.Compile(nil, rules...)
	require.NoError(t, err)
	require.NoError(t, w.plane.Apply(table))
}

// digest starts a server that reads to the end of the client's stream, and answers with its own number, the stream's digest and n bytes.
func (w *world) digest(t testing.TB, i int, v6 bool, port uint16, n int) {
	ln, err := w.servers[i].Listen(context.Background(), "tcp", netip.AddrPortFrom(waddr(v6, byte(1+i), 2), port).String())
	require.NoError(t, err)
	testenv.Accept(t, ln, func(c net.Conn) {
		h := sha256.New()
		if _, err := io.Copy(h, c); err != nil {
			return
		}
		_, _ = c.Write(append(append([]byte{byte(i)}, h.Sum(nil)...), bytes.Repeat([]byte{'x'}, n)...))
	})
}

// upload sends n bytes in pieces, closes its side, and checks the answer. It returns the server's number.
func (w *world) upload(v6 bool, port uint16, n, answer int, rng *rand.Rand) (int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := w.client.DialContext(ctx, "tcp", netip.AddrPortFrom(wvip(v6), port).String())
	if err != nil {
		return 0, err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(rng.Uint32())
	}
	_ = c.(*net.TCPConn).SetNoDelay(true)
	for rest := data; len(rest) > 0; {
		k := min(len(rest), 1+rng.IntN(20000))
		if rng.IntN(3) == 0 {
			k = min(len(rest), 1+rng.IntN(3))
		}
		if _, err := c.Write(rest[:k]); err != nil {
			return 0, fmt.Errorf("write: %w", err)
		}
		rest = rest[k:]
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		return 0, err
	}
	got, err := io.ReadAll(c)
	if err != nil {
		return 0, fmt.Errorf("read: %w after %d bytes", err, len(got))
	}
	want := sha256.Sum256(data)
	if len(got) != 33+answer || !bytes.Equal(got[1:33], want[:]) {
		return 0, fmt.Errorf("answer of %d bytes, want %d; or another digest", len(got), 33+answer)
	}
	return int(got[0]), nil
}

// spliced waits until n more connections have been spliced than before, and none is held.
func (w *world) spliced(t *testing.T, before dataplane.DelayStats, n int) {
	t.Helper()
	require.EventuallyWithT(t, func(t *assert.CollectT) {
		st := w.plane.Stats().Delay
		assert.EqualValues(t, n, st.Spliced-before.Spliced)
		assert.Zero(t, st.Held)
	}, 30*time.Second, 5*time.Millisecond)
}

func TestDelayedBindingWithKernels(t *testing.T) {
	families(t, func(t *testing.T, w *world, v6 bool) {
		for name, local := range map[string]bool{"NAT": false, "full NAT": true} {
			t.Run(name, func(t *testing.T) {
				w.delay(t, func(s *dataplane.Service, v6 bool) {
					if local {
						s.Forward, s.Locals = dataplane.FullNAT, []netip.Addr{wvip2(v6)}
					}
				})
				port := uint16(7000)
				if local {
					port++
				}
				for i := range 2 {
					w.digest(t, i, v6, port, 100000)
				}
				before := w.plane.Stats().Delay
				var wg sync.WaitGroup
				errs := make(chan error, 40)
				for k := range 40 {
					wg.Go(func() {
						rng := rand.New(rand.NewPCG(uint64(k), 1))
						_, err := w.upload(v6, port, rng.IntN(200000)*(k%4)/3, 100000, rng)
						errs <- err
					})
				}
				wg.Wait()
				for range 40 {
					require.NoError(t, <-errs)
				}
				w.spliced(t, before, 40)
			})
		}
	})
}

// wvip2 is an address of the balancer's for full NAT.
func wvip2(v6 bool) netip.Addr {
	if v6 {
		return netip.MustParseAddr("2001:db8::71")
	}
	return netip.MustParseAddr("192.0.2.71")
}

// bad is a device that loses a fifth of what it is given to write, doubles and reorders. Of one direction of a connection it loses two packets in a row
// at most, and nothing is late for long: kernels wait twice as long after each, and would have no bound.
type bad struct {
	dataplane.Device
	mu     sync.Mutex
	rng    *rand.Rand
	later  [][]byte
	flush  *time.Timer
	offset int
	inARow map[string]int // by addresses and ports
}

func newBad(d dataplane.Device, seed uint64) *bad {
	return &bad{Device: d, rng: rand.New(rand.NewPCG(seed, seed)), inARow: make(map[string]int)}
}

// direction is that of a connection, as packets without options and extension headers show it.
func direction(p []byte) string {
	if p[0]>>4 == 6 {
		return string(p[8:min(44, len(p))])
	}
	return string(p[12:min(24, len(p))])
}

func (b *bad) VirtioHeader() int { return b.Device.(dataplane.Offloader).VirtioHeader() }

func (b *bad) Write(bufs [][]byte, offset int) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out [][]byte
	for _, p := range bufs {
		dir := direction(p[offset:])
		lost := b.inARow[dir]
		b.inARow[dir] = 0
		switch r := b.rng.Float64(); {
		case r < 0.2 && lost < 2:
			b.inARow[dir] = lost + 1
		case r < 0.3:
			b.later = append(b.later, bytes.Clone(p))
		case r < 0.35:
			out = append(out, p, bytes.Clone(p))
		default:
			out = append(out, p)
		}
		if len(b.later) > 2 {
			out, b.later = append(out, b.later...), nil
		}
	}
	if len(b.later) > 0 && b.flush == nil {
		b.offset = offset
		b.flush = time.AfterFunc(20*time.Millisecond, b.release)
	}
	return len(bufs), b.write(out, offset)
}

// release sends what is late.
func (b *bad) release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	_ = b.write(b.later, b.offset) // of a device that may be closed by now
	b.later, b.flush = nil, nil
}

func (b *bad) write(out [][]byte, offset int) error {
	for len(out) > 0 {
		n, err := b.Device.Write(out, offset)
		if err != nil {
			return err
		}
		out = out[n:]
	}
	return nil
}

func TestDelayedBindingOverABadNetwork(t *testing.T) {
	w := newWorld(t, how{noOffload: true, wrap: func(d dataplane.Device) dataplane.Device { return newBad(d, 3) }})
	w.delay(t, func(s *dataplane.Service, _ bool) {
		s.Delay.Limits = splice.Limits{Time: 30 * time.Second, ServerTime: 30 * time.Second, ReplayTime: time.Minute}
	})
	for _, v6 := range []bool{false, true} {
		for i := range 2 {
			w.digest(t, i, v6, 7100, 3000)
		}
	}
	var wg sync.WaitGroup
	errs := make(chan error, 12)
	for k := range cap(errs) {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(k), 2))
			_, err := w.upload(k%2 == 0, 7100, rng.IntN(8000), 3000, rng)
			errs <- err
		})
	}
	wg.Wait()
	for range cap(errs) {
		require.NoError(t, <-errs)
	}
	w.spliced(t, dataplane.DelayStats{}, cap(errs))
}

func TestDelayedBindingPassesServersThatRefuse(t *testing.T) {
	w := newWorld(t, how{})
	w.delay(t, func(s *dataplane.Service, _ bool) {})
	for _, v6 := range []bool{false, true} {
		w.digest(t, 1, v6, 7200, 10) // the other server has nobody there
		for k := range 10 {
			from, err := w.upload(v6, 7200, 10000, 10, rand.New(rand.NewPCG(uint64(k), 3)))
			require.NoError(t, err)
			require.Equal(t, 1, from)
		}
		// With no server at all the client is told soon.
		_, err := w.upload(v6, 7201, 10, 10, rand.New(rand.NewPCG(0, 3)))
		require.Error(t, err)
	}
}

// Many connections at once, every byte of which is checked. LBPRIM_CONNECTIONS says how many; 10,000 take a minute or two.
func TestManyDelayedConnections(t *testing.T) {
	w := newWorld(t, how{queues: 2})
	w.delay(t, func(s *dataplane.Service, _ bool) {})
	resets, want := new(atomic.Int64), new(atomic.Int64)
	for _, v6 := range []bool{false, true} {
		for i := range 2 {
			w.digest(t, i, v6, 7300, 700)
			w.closer(t, i, v6, 7301, resets)
		}
	}
	each := 50
	if testing.Short() {
		each = 10
	}
	if n, err := strconv.Atoi(os.Getenv("LBPRIM_CONNECTIONS")); err == nil {
		each = max(1, n/40)
	}
	var wg sync.WaitGroup
	errs := make(chan error, 40)
	for k := range cap(errs) {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(k), 4))
			for i := range each {
				var err error
				if i%2 == 0 {
					_, err = w.upload(k%2 == 0, 7300, rng.IntN(8000), 700, rng)
				} else {
					if i/2%6 == 4 {
						want.Add(1)
					}
					err = w.closing(i/2, k%2 == 0, 7301, rng)
				}
				if err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		})
	}
	wg.Wait()
	for range cap(errs) {
		require.NoError(t, <-errs)
	}
	w.spliced(t, dataplane.DelayStats{}, cap(errs)*each)
	require.Eventually(t, func() bool { return resets.Load() == want.Load() }, 30*time.Second, 5*time.Millisecond, "resets of clients reach their servers")
}

// closer starts a server that closes as the client's first byte wants it: 0 after the client has closed, 1 with its answer, and reads on,
// 2 at once, without having read all, 3 by a reset, 4 when the client has reset it, which it counts, 5 with its answer, as the client does with its request.
func (w *world) closer(t testing.TB, i int, v6 bool, port uint16, resets *atomic.Int64) {
	ln, err := w.servers[i].Listen(context.Background(), "tcp", netip.AddrPortFrom(waddr(v6, byte(1+i), 2), port).String())
	require.NoError(t, err)
	testenv.Accept(t, ln, func(c net.Conn) {
		head := make([]byte, 5)
		if _, err := io.ReadFull(c, head); err != nil {
			return
		}
		data := make([]byte, binary.BigEndian.Uint32(head[1:]))
		if head[0] == 2 {
			_, _ = c.Write([]byte("enough"))
			_ = c.(*net.TCPConn).CloseWrite()
			_, _ = io.Copy(io.Discard, c)
			return
		}
		if _, err := io.ReadFull(c, data); err != nil {
			return
		}
		if head[0] == 0 {
			if n, err := c.Read(head); n != 0 || !errors.Is(err, io.EOF) {
				return
			}
		}
		_, _ = c.Write(data)
		switch head[0] {
		case 1, 5:
			_ = c.(*net.TCPConn).CloseWrite()
			_, _ = io.Copy(io.Discard, c)
		case 3:
			_, _ = c.Read(head) // the client says that it has the answer
			_ = c.(*net.TCPConn).SetLinger(0)
		case 4:
			if _, err := c.Read(head); errors.Is(err, syscall.ECONNRESET) {
				resets.Add(1)
			}
		}
	})
}

// closing does a connection with a closer.
func (w *world) closing(i int, v6 bool, port uint16, rng *rand.Rand) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := w.client.DialContext(ctx, "tcp", netip.AddrPortFrom(wvip(v6), port).String())
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	kind := byte(i % 6)
	data := make([]byte, 1+rng.IntN(20000))
	for j := range data {
		data[j] = byte(rng.Uint32())
	}
	if _, err := c.Write(append(binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(data))), data...)); err != nil {
		return err
	}
	want := data
	switch kind {
	case 0, 5:
		err = c.(*net.TCPConn).CloseWrite()
	case 2:
		want = []byte("enough")
	}
	if err != nil {
		return err
	}
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil {
		return fmt.Errorf("closing %d: %w", kind, err)
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("closing %d: another answer", kind)
	}
	switch kind {
	case 4:
		return c.(*net.TCPConn).SetLinger(0)
	case 3:
		if _, err := c.Write([]byte{1}); err != nil {
			return err
		}
		if _, err = c.Read(got); !errors.Is(err, syscall.ECONNRESET) {
			return fmt.Errorf("closing %d: %w, want a reset", kind, err)
		}
		return nil
	}
	if n, err := c.Read(got); n != 0 || !errors.Is(err, io.EOF) {
		return fmt.Errorf("closing %d: %d bytes and %w behind the answer", kind, n, err)
	}
	return nil
}

// patience is how long a connection may take at most, over whichever network.
const patience = 150 * time.Second
