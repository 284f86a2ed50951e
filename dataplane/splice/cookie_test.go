package splice

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func answered(t testing.TB, c *Cookies, syn Segment) Segment {
	t.Helper()
	syn.Flags = SYN
	return c.Answer(epoch, tuple, &syn)
}

func TestCookieRemembersTheOptions(t *testing.T) {
	c, err := NewCookies(nil, nil)
	require.NoError(t, err)
	for _, mss := range []uint16{0, 100, 536, 1000, 1380, 1400, 1460, 8960, 65535} {
		for _, o := range []Options{
			{}, {Timestamps: true, TSVal: 77}, {SACKPermitted: true}, {HasScale: true, Scale: 7},
			{Timestamps: true, HasScale: true, Scale: 0}, {Timestamps: true, HasScale: true, Scale: 14, SACKPermitted: true}, {Timestamps: true, SACKPermitted: true},
		} {
			o.MSS = mss
			a := answered(t, c, Segment{Seq: 1000, Options: o})
			require.Equal(t, uint32(1001), a.Ack)
			require.Equal(t, uint8(SYN|ACK), a.Flags)
			require.Equal(t, o.Timestamps, a.Options.Timestamps)
			require.Equal(t, o.Timestamps && o.HasScale, a.Options.HasScale, "no option is agreed on that cannot be remembered")
			require.Equal(t, o.Timestamps && o.SACKPermitted, a.Options.SACKPermitted)
			require.Equal(t, o.TSVal, a.Options.TSEcr)
			ack := Segment{Seq: 1001, Ack: a.Seq + 1, Flags: ACK, Options: Options{Timestamps: o.Timestamps, TSVal: 80, TSEcr: a.Options.TSVal}}
			s, ok := c.Check(epoch.Add(time.Second), tuple, &ack)
			require.True(t, ok)
			require.Equal(t, a.Options.HasScale, s.scaled)
			if s.scaled {
				require.Equal(t, o.Scale, s.clientScale)
			}
			require.Equal(t, a.Options.SACKPermitted, s.sack)
			if mss >= 88 {
				require.LessOrEqual(t, s.clientMSS, mss)
			}
			require.False(t, before(c.clock(epoch), a.Options.TSVal) && o.Timestamps, "a timestamp ahead of the clock")
		}
	}
	a := answered(t, c, Segment{Options: Options{}})
	require.Equal(t, uint16(1460), a.Options.MSS)
	six := Tuple{netip.MustParseAddrPort("[2001:db8::1]:5"), netip.MustParseAddrPort("[2001:db8::2]:5")}
	a = c.Answer(epoch, six, &Segment{Flags: SYN})
	require.Equal(t, uint16(1440), a.Options.MSS)
}

func TestForgedAndOldCookies(t *testing.T) {
	secret := []byte("0123456789abcdef")
	c, err := NewCookies(secret, nil)
	require.NoError(t, err)
	a := answered(t, c, Segment{Seq: 1000})
	good := Segment{Seq: 1001, Ack: a.Seq + 1, Flags: ACK}
	check := func(c *Cookies, at time.Duration, tu Tuple, s Segment) bool {
		_, ok := c.Check(epoch.Add(at), tu, &s)
		return ok
	}
	require.True(t, check(c, 0, tuple, good))
	require.True(t, check(c, 63*time.Second, tuple, good))
	require.False(t, check(c, 129*time.Second, tuple, good), "old")
	require.False(t, check(c, 32*64*time.Second+65*time.Second, tuple, good), "older than the counter")

	twin, err := NewCookies(secret, nil)
	require.NoError(t, err)
	require.True(t, check(twin, 0, tuple, good), "a balancer with the same secret")
	other, err := NewCookies(nil, nil)
	require.NoError(t, err)
	require.False(t, check(other, 0, tuple, good), "another secret")

	for name, change := range map[string]func(*Tuple, *Segment){
		"another client":       func(tu *Tuple, _ *Segment) { tu.Client = netip.MustParseAddrPort("192.0.2.10:40000") },
		"another client port":  func(tu *Tuple, _ *Segment) { tu.Client = netip.MustParseAddrPort("192.0.2.9:40001") },
		"another service":      func(tu *Tuple, _ *Segment) { tu.Service = netip.MustParseAddrPort("192.0.2.81:80") },
		"another service port": func(tu *Tuple, _ *Segment) { tu.Service = netip.MustParseAddrPort("192.0.2.80:81") },
		"another sequence":     func(_ *Tuple, s *Segment) { s.Seq++ },
		"another ack":          func(_ *Tuple, s *Segment) { s.Ack++ },
		"a SYN":                func(_ *Tuple, s *Segment) { s.Flags |= SYN },
		"a reset":              func(_ *Tuple, s *Segment) { s.Flags |= RST },
	} {
		tu, s := tuple, good
		change(&tu, &s)
		require.False(t, check(c, 0, tu, s), name)
	}
	rng := rand.New(rand.NewPCG(1, 1))
	forged := 0
	for range 200_000 {
		if check(c, 0, tuple, Segment{Seq: rng.Uint32(), Ack: rng.Uint32(), Flags: ACK}) {
			forged++
		}
	}
	require.LessOrEqual(t, forged, 2, "guessing succeeds less than once in a hundred million")

	// A segment that overtook the first one is no proof, but no offence either.
	late := Segment{Seq: 1001 + 1460, Ack: a.Seq + 1, Flags: ACK, Payload: []byte("x")}
	require.False(t, check(c, 0, tuple, late))
	require.True(t, c.Recent(epoch, &late))
	require.False(t, c.Recent(epoch.Add(5*time.Minute), &late))
}

func TestConfigFaults(t *testing.T) {
	_, err := NewCookies([]byte("short"), &Offer{Scale: 15})
	require.ErrorContains(t, err, "secret of 5 bytes: want 16")
	require.ErrorContains(t, err, "Scale: 15: want 0 to 14")
	_, err = NewCookies(nil, &Offer{MSS: 10})
	require.ErrorContains(t, err, "MSS: 10")
	_, err = Limits{Budget: 70000, Time: -1, ServerTime: -1, ReplayTime: -1}.WithDefaults()
	for _, want := range []string{"Budget: 70000", " Time: -1ns", "ServerTime: -1ns", "ReplayTime: -1ns"} {
		require.ErrorContains(t, err, want)
	}
}

// A flood costs no memory at all.
func TestNothingIsKeptOfASYN(t *testing.T) {
	c, err := NewCookies(nil, nil)
	require.NoError(t, err)
	syn := Segment{Seq: 5, Flags: SYN, Options: Options{MSS: 1460, Timestamps: true}}
	bad := Segment{Seq: 5, Ack: 99, Flags: ACK}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		c.Answer(epoch, tuple, &syn)
		c.Check(epoch, tuple, &bad)
	}))
}

// sum is the Internet checksum, as a slow twin of an incremental update.
func sum(b []byte) (s uint32) {
	for i, x := range b {
		s += uint32(x) << (8 * (1 - i%2))
	}
	for s>>16 != 0 {
		s = s>>16 + s&0xffff
	}
	return s
}

// diff updates a sum by what a Translation reports.
type diff struct{ s uint32 }

func (d *diff) word(from, to uint16) {
	d.s += uint32(^from) + uint32(to)
	d.s = d.s>>16 + d.s&0xffff
}
func (d *diff) Word(from, to uint16) { d.word(from, to) }
func (d *diff) Long(from, to uint32) {
	d.word(uint16(from>>16), uint16(to>>16))
	d.word(uint16(from), uint16(to))
}
func (d *diff) LongOdd(from, to uint32) { d.Long(from<<8|from>>24, to<<8|to>>24) }

func TestTranslationReportsEveryChange(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 2))
	for i := range 20_000 {
		s := Segment{Seq: rng.Uint32(), Ack: rng.Uint32(), Flags: uint8(rng.IntN(64)), Window: uint16(rng.Uint32()), Options: Options{Timestamps: i%2 == 0, TSVal: rng.Uint32(), TSEcr: rng.Uint32()}}
		b := s.Append(nil, 1, 2)
		if i%3 == 0 { // options at odd offsets
			odd := append([]byte{kindNOP, kindSACK, 18}, make([]byte, 16)...)
			for j := range 16 {
				odd[3+j] = byte(rng.Uint32())
			}
			head := slices.Concat(b[:20], odd, b[20:])
			for len(head)%4 != 0 {
				head = append(head, kindEnd)
			}
			b = head
			b[12] = byte(len(b) / 4 << 4)
		}
		tr := Translation{Seq: rng.Uint32(), TS: rng.Uint32(), First: rng.Uint32(), Timestamps: i%5 > 0, Shift: int8(rng.IntN(29) - 14)}
		for _, translate := range []func([]byte, Change){tr.ToClient, tr.ToServer} {
			d := diff{sum(b)}
			translate(b, &d)
			got := d.s>>16 + d.s&0xffff
			require.Equal(t, sum(b)%0xffff, got%0xffff)
		}
	}
}

func TestTranslationThereAndBack(t *testing.T) {
	tr := Translation{Seq: 1000, TS: 50, Timestamps: true, First: 7}
	s := Segment{Seq: 5, Ack: 6, Flags: ACK, Options: Options{Timestamps: true, TSVal: 100, TSEcr: 60}}
	b := s.Append(nil, 1, 2)
	tr.ToClient(b, noChange{})
	var c Segment
	require.True(t, Parse(b, &c))
	require.Equal(t, uint32(1005), c.Seq)
	require.Equal(t, uint32(150), c.Options.TSVal)
	require.Equal(t, uint32(60), c.Options.TSEcr, "the client's own timestamp stays")
	back := Segment{Seq: 6, Ack: 1005, Flags: ACK, Options: Options{Timestamps: true, TSVal: 61, TSEcr: 150}}
	b = back.Append(nil, 2, 1)
	tr.ToServer(b, noChange{})
	require.True(t, Parse(b, &c))
	require.Equal(t, uint32(5), c.Ack)
	require.Equal(t, uint32(6), c.Seq)
	require.Equal(t, uint32(100), c.Options.TSEcr)
	require.Equal(t, uint32(61), c.Options.TSVal)

	for _, w := range []struct {
		shift    int8
		from, to uint16
	}{{0, 500, 500}, {3, 500, 4000}, {3, 60000, 65535}, {-3, 500, 62}, {-3, 3, 1}, {-3, 0, 0}} {
		tr := Translation{Shift: w.shift}
		s := Segment{Flags: ACK, Window: w.from}
		b := s.Append(nil, 1, 2)
		tr.ToClient(b, noChange{})
		require.True(t, Parse(b, &c))
		require.Equal(t, w.to, c.Window, "%+v", w)
	}
}

func BenchmarkAnswer(b *testing.B) {
	c, err := NewCookies(nil, nil)
	require.NoError(b, err)
	syn := Segment{Seq: 5, Flags: SYN, Options: Options{MSS: 1460, Timestamps: true}}
	b.ReportAllocs()
	for b.Loop() {
		c.Answer(epoch, tuple, &syn)
	}
}

func BenchmarkForgedACK(b *testing.B) {
	c, err := NewCookies(nil, nil)
	require.NoError(b, err)
	bad := Segment{Seq: 5, Ack: 99 + (c.period(epoch)&31)<<27, Flags: ACK}
	b.ReportAllocs()
	for b.Loop() {
		c.Check(epoch, tuple, &bad)
	}
}

func BenchmarkTranslate(b *testing.B) {
	tr := Translation{Seq: 1, TS: 1, Timestamps: true}
	s := Segment{Flags: ACK, Options: Options{Timestamps: true}}
	seg := s.Append(nil, 1, 2)
	b.ReportAllocs()
	for b.Loop() {
		tr.ToClient(seg, noChange{})
	}
}

func TestClocksOfBalancersMayDiffer(t *testing.T) {
	secret := []byte("0123456789abcdef")
	for ahead := -140 * time.Second; ahead <= 140*time.Second; ahead += time.Second {
		a, err := NewCookies(secret, nil)
		require.NoError(t, err)
		at := epoch.Add(ahead) // the answering balancer's clock
		s := a.Answer(at, tuple, &Segment{Seq: 1000, Flags: SYN, Options: Options{Timestamps: true}})
		ack := Segment{Seq: 1001, Ack: s.Seq + 1, Flags: ACK, Options: Options{Timestamps: true, TSEcr: s.Options.TSVal}}
		start, ok := a.Check(epoch, tuple, &ack)
		switch {
		case ahead >= -64*time.Second && ahead <= 64*time.Second:
			require.True(t, ok, ahead)
			var sent Segment
			start.Conn(epoch, Limits{}).FromClient(epoch, &Segment{Seq: 1001, Ack: s.Seq + 1, Flags: ACK, Payload: []byte("x"), Options: ack.Options}, func(_ Side, s *Segment) { sent = *s })
			require.False(t, before(sent.Options.TSVal, s.Options.TSVal), "timestamps never go back")
		case ahead < -128*time.Second || ahead >= 128*time.Second:
			require.False(t, ok, ahead)
		}
		require.Equal(t, ok, a.Recent(epoch, &ack))
	}
}

func TestSecretsChangeWhileRunning(t *testing.T) {
	older, newer, third := []byte("0123456789abcdef"), []byte("fedcba9876543210"), []byte("thirdthirdthird!")
	c, err := NewCookies(older, nil)
	require.NoError(t, err)
	accepted := func(a Segment) bool {
		_, ok := c.Check(epoch, tuple, &Segment{Seq: 1001, Ack: a.Seq + 1, Flags: ACK})
		return ok
	}
	first := answered(t, c, Segment{Seq: 1000})
	clock := c.clock(epoch)
	require.NoError(t, c.SetSecrets(newer, older))
	second := answered(t, c, Segment{Seq: 1000})
	require.NotEqual(t, first.Seq, second.Seq)
	require.True(t, accepted(first))
	require.True(t, accepted(second))
	require.Equal(t, clock, c.clock(epoch), "connections go on by the same clock")
	require.NoError(t, c.SetSecrets(newer))
	require.False(t, accepted(first))
	require.True(t, accepted(second))
	require.NoError(t, c.SetSecrets(third, older, newer))
	require.True(t, accepted(first))
	require.True(t, accepted(second))

	require.ErrorContains(t, c.SetSecrets(), "0 secrets: want 1 to 3")
	require.ErrorContains(t, c.SetSecrets(older, []byte("short"), nil), "secret 1 of 5 bytes: want 16")
	require.ErrorContains(t, c.SetSecrets(older, older, older, older), "4 secrets: want 1 to 3")
	require.True(t, accepted(first), "an error changes nothing")

	require.NoError(t, c.SetSecrets(older, newer))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 1000 {
			_ = c.SetSecrets(newer, older)
		}
	}()
	for range 1000 {
		require.True(t, accepted(answered(t, c, Segment{Seq: 1000})))
	}
	<-done
}

func TestSmallSegmentsOfClients(t *testing.T) {
	for _, mss := range []uint16{88, 100, 215, 216, 535} {
		require.LessOrEqual(t, mssClasses[mssClass(mss)], mss)
	}
	_, err := NewCookies(nil, &Offer{Scale: 15, MSS: 10})
	require.ErrorContains(t, err, "Scale: 15")
	require.ErrorContains(t, err, "MSS: 10", "all faults at once")
}
