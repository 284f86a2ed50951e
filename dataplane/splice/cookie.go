package splice

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/dchest/siphash"
)

// Offer is what the balancer promises to clients on behalf of the servers. All servers of a farm must keep it: one whose SYN-ACK lacks a promised option is
// passed over. The zero Offer takes every default.
type Offer struct {
	// MSS promised to clients. Default 1460 for IPv4 and 1440 for IPv6. It must not exceed what servers accept.
	MSS uint16
	// Scale is the window scale promised, where the client offers one: that of the servers, 0 to 14. Default
	// 7, as Linux has it. Another scale of a server's is translated, at the cost of granularity.
	Scale uint8
	// NoScale, NoSACK and NoTimestamps leave an option out.
	NoScale, NoSACK, NoTimestamps bool
	// Window is what a client may send before the server is known, in bytes: Limits.Budget, so that it sends nothing in vain and has
	// seen a window as large as the stretch that the server acknowledges once more, while it gets the replay: clients ignore segments with
	// acknowledgements further back than that (RFC 5961, 5.2). Default 3584.
	Window uint16
}

func (o *Offer) withDefaults() (Offer, error) {
	var c Offer
	if o != nil {
		c = *o
	}
	var faults []error
	if c.Scale > 14 {
		faults = append(faults, fmt.Errorf("splice: offer: Scale: %d: want 0 to 14", c.Scale))
	}
	if c.Scale == 0 && !c.NoScale {
		c.Scale = 7
	}
	if c.MSS != 0 && c.MSS < 64 {
		faults = append(faults, fmt.Errorf("splice: offer: MSS: %d: want 64 or more, or 0 for the default", c.MSS))
	}
	if c.Window == 0 {
		c.Window = defaultBudget
	}
	return c, errors.Join(faults...)
}

func (o *Offer) mss(v6 bool) uint16 {
	switch {
	case o.MSS != 0:
		return o.MSS
	case v6:
		return 1440
	}
	return 1460
}

// Tuple names a connection by the endpoints of the Client and of the Service that it asked for. It is comparable.
type Tuple struct{ Client, Service netip.AddrPort }

// Cookies answers SYNs without keeping anything, and recognises the ACKs that return its answers. Use [NewCookies]; it is safe for
// concurrent use.
//
// The sequence number of an answer holds the time in units of 64 seconds (5 bits), the client's
// MSS class (3 bits) and 24 bits of a keyed hash of the tuple, the client's sequence number and the time. Where the client sends timestamps, the low six bits of
// the answer's timestamp hold its other options. Answers are accepted for one to two units of time, and from a balancer whose clock is up to one ahead.
type Cookies struct {
	offer Offer
	keys  atomic.Pointer[[]key]
	start time.Time
	skew  uint32 // of the timestamp clock, so that it does not tell the uptime
}

// key is a secret, as SipHash takes it.
type key struct{ k0, k1 uint64 }

// mostSecrets bounds how many secrets are accepted, as a forged segment costs a hash with each.
const mostSecrets = 3

// SetSecrets replaces the secrets while running: answers are made with the first, and those made with any of the one to three are accepted. A
// balancer by itself changes to a new secret with (new, old), and leaves the old one out after three minutes or
// at the next change. Balancers that share secrets all learn the new one first: (old, new), then (new, old), then (new).
// On an error nothing is changed.
func (c *Cookies) SetSecrets(secrets ...[]byte) error {
	var faults []error
	if len(secrets) == 0 || len(secrets) > mostSecrets {
		faults = append(faults, fmt.Errorf("splice: %d secrets: want 1 to %d", len(secrets), mostSecrets))
	}
	keys := make([]key, 0, mostSecrets)
	for i, s := range secrets {
		if len(s) != 16 {
			faults = append(faults, fmt.Errorf("splice: secret %d of %d bytes: want 16", i, len(s)))
			continue
		}
		keys = append(keys, key{binary.LittleEndian.Uint64(s), binary.LittleEndian.Uint64(s[8:])})
	}
	if len(faults) > 0 {
		return errors.Join(faults...)
	}
	c.keys.Store(&keys)
	return nil
}

// NewCookies returns Cookies with a secret of 16 bytes. Balancers that share a secret recognise each other's cookies. A nil secret
// is replaced by a random one; a nil offer takes the defaults. See [Cookies.SetSecrets] for changing it.
func NewCookies(secret []byte, offer *Offer) (*Cookies, error) {
	o, err := offer.withDefaults()
	if secret == nil {
		secret = make([]byte, 16)
		rand.Read(secret)
	}
	if len(secret) != 16 {
		return nil, errors.Join(err, fmt.Errorf("splice: secret of %d bytes: want 16, or none for a random one", len(secret)))
	}
	if err != nil {
		return nil, err
	}
	c := &Cookies{offer: o, start: time.Unix(0, 0)}
	if err := c.SetSecrets(secret); err != nil {
		return nil, err
	}
	c.skew = (*c.keys.Load())[0].hash(&Tuple{}, 0, 0)
	return c, nil
}

// mssClasses are the client MSS values a cookie can say, as round numbers below common ones.
func mssClass(mss uint16) (class int) {
	for class = len(mssClasses) - 1; class > 0 && mssClasses[class] > mss; class-- {
	}
	return class
}

// Clients that name no MSS are of 536 and 1220 (RFC 9293, 3.7.1). The smallest is as small as that of any real host, so that none gets larger segments than it takes.
var mssClasses = [8]uint16{88, 536, 1220, 1360, 1400, 1440, 1460, 8960}

const (
	cookiePeriod = 64 * time.Second
	cookieLives  = 2 // periods in which a cookie is accepted, its own included
	optionBits   = 6
	optionMask   = 1<<optionBits - 1
	noScale      = 15
	sackBit      = 1 << 4
)

func (c *Cookies) period(now time.Time) uint32 { return uint32(now.Sub(c.start) / cookiePeriod) }

// hash is SipHash-2-4 of all that the cookie vouches for.
func (k key) hash(t *Tuple, isn, period uint32) uint32 {
	var b [44]byte
	src, dst := t.Client.Addr(), t.Service.Addr()
	if src.IsValid() {
		*(*[16]byte)(b[0:]) = src.As16()
	}
	if dst.IsValid() {
		*(*[16]byte)(b[16:]) = dst.As16()
	}
	binary.BigEndian.PutUint16(b[32:], t.Client.Port())
	binary.BigEndian.PutUint16(b[34:], t.Service.Port())
	binary.BigEndian.PutUint32(b[36:], isn)
	binary.BigEndian.PutUint32(b[40:], period)
	return uint32(siphash.Hash(k.k0, k.k1, b[:]))
}

// clock is the balancer's timestamp clock in milliseconds.
func (c *Cookies) clock(now time.Time) uint32 {
	return uint32(now.Sub(c.start).Milliseconds()) + c.skew
}

// Answer returns the SYN-ACK for a client's SYN. It keeps nothing.
func (c *Cookies) Answer(now time.Time, t Tuple, syn *Segment) Segment {
	v6 := t.Service.Addr().Unmap().Is6()
	in := &syn.Options
	mss := in.MSS
	if mss == 0 {
		mss = 536
		if v6 {
			mss = 1220
		}
	}
	period := c.period(now)
	cookie := (period&31)<<27 | uint32(mssClass(mss))<<24 | (*c.keys.Load())[0].hash(&t, syn.Seq, period)&0xffffff
	out := Segment{Seq: cookie, Ack: syn.Seq + 1, Flags: SYN | ACK, Window: c.offer.Window, Options: Options{MSS: c.offer.mss(v6)}}
	if !in.Timestamps || c.offer.NoTimestamps {
		// Without timestamps there is no room to remember other options, so none is agreed on.
		return out
	}
	bits := uint32(noScale)
	if in.HasScale && !c.offer.NoScale {
		bits = uint32(in.Scale)
		out.Options.HasScale, out.Options.Scale = true, c.offer.Scale
	}
	if in.SACKPermitted && !c.offer.NoSACK {
		bits |= sackBit
		out.Options.SACKPermitted = true
	}
	clock := c.clock(now)
	val := clock&^optionMask | bits
	if before(clock, val) {
		val -= 1 << optionBits // never ahead of the clock: later timestamps must not be smaller
	}
	out.Options.Timestamps, out.Options.TSVal, out.Options.TSEcr = true, val, in.TSVal
	return out
}

// Check reports whether ack, the first segment of a client after its SYN, returns an answer of ours, and starts the Conn if so. It costs
// about as much for a forged segment as for a true one, and keeps nothing of the former.
func (c *Cookies) Check(now time.Time, t Tuple, ack *Segment) (start Start, ok bool) {
	if ack.Flags&(ACK|SYN|RST) != ACK {
		return Start{}, false
	}
	cookie := ack.Ack - 1
	isn := ack.Seq - 1
	period, ok := c.periodOf(now, cookie)
	if !ok {
		return Start{}, false
	}
	ok = false
	for _, k := range *c.keys.Load() {
		ok = ok || (cookie^k.hash(&t, isn, period))&0xffffff == 0
	}
	if !ok {
		return Start{}, false
	}
	start = Start{clientISN: isn, ourISN: cookie, ourMSS: c.offer.mss(t.Service.Addr().Unmap().Is6()), clientMSS: mssClasses[cookie>>24&7], offer: c.offer, cookies: c}
	if o := &ack.Options; o.Timestamps && !c.offer.NoTimestamps {
		start.timestamps, start.val = true, o.TSEcr
		bits := o.TSEcr & optionMask
		if s := bits & 15; s != noScale && !c.offer.NoScale {
			start.scaled, start.clientScale = true, uint8(min(s, 14))
		}
		start.sack = bits&sackBit != 0 && !c.offer.NoSACK
	}
	return start, true
}

// Recent reports whether a segment that Check refuses may be a later one of a client whose ACK was lost or overtaken: it acknowledges what could be a
// recent answer. Such a segment is best dropped, not answered by a reset, as the client sends all of it again.
func (c *Cookies) Recent(now time.Time, ack *Segment) bool {
	_, ok := c.periodOf(now, ack.Ack-1)
	return ok && ack.Flags&(ACK|SYN|RST) == ACK
}

// periodOf returns the period of which a cookie says to be, if such a cookie is accepted.
func (c *Cookies) periodOf(now time.Time, cookie uint32) (period uint32, ok bool) {
	next := c.period(now) + 1 // of a balancer whose clock is ahead
	age := (next - cookie>>27) & 31
	return next - age, age <= cookieLives
}

// Start is what a valid ACK says of its connection; [Start.Conn] makes the connection's state.
type Start struct {
	clientISN, ourISN        uint32
	clientMSS, ourMSS        uint16
	clientScale              uint8
	scaled, sack, timestamps bool
	val                      uint32 // the timestamp the client has seen
	offer                    Offer
	cookies                  *Cookies
	ahead                    uint32 // of the cookies' clock: that of a process before this one
}

// clock is the clock of our timestamps to the client.
func (s *Start) clock(now time.Time) uint32 { return s.cookies.clock(now) + s.ahead }

// segmentSize is the payload of a full segment to a peer that takes mss: no more than clients may send, as the way need not carry more.
func (s *Start) segmentSize(mss uint16) int {
	n := int(min(mss, s.ourMSS))
	if s.timestamps {
		n -= 12
	}
	return max(n, leastMSS-12)
}
