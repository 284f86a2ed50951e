package clienttable

import (
	"errors"
	"fmt"
	"time"

	"github.com/lbprim/lbprim/internal/enum"
)

// Default times of [Ageing].
const (
	DefaultSYN          = 5 * time.Second
	DefaultLinger       = 5 * time.Second
	DefaultOneWayLinger = time.Minute
)

// CloseTo says who is told, by a TCP RST, that a session has been forgotten because
// it was idle. The zero CloseTo is CloseNone.
//
// A [Table] sends nothing: whoever handles Config.OnRemove does, for entries that
// are [Expired], with the numbers that [TCPState.Reset] returns.
type CloseTo uint8

// Whom to tell.
const (
	CloseNone CloseTo = iota
	CloseServer
	CloseClient
	CloseBoth
)

var closeNames = enum.Of[CloseTo]("clienttable: close at ageing", "none", "server", "client", "both")

// To reports whether the side that sends in direction d is told.
func (c CloseTo) To(d Dir) bool {
	if d == FromServer {
		return c == CloseServer || c == CloseBoth
	}
	return c == CloseClient || c == CloseBoth
}

// String returns the name of c.
func (c CloseTo) String() string { return closeNames.String(c) }

// AppendText implements encoding.TextAppender.
func (c CloseTo) AppendText(b []byte) ([]byte, error) { return closeNames.Append(b, c) }

// MarshalText implements encoding.TextMarshaler.
func (c CloseTo) MarshalText() ([]byte, error) { return c.AppendText(nil) }

// UnmarshalText implements encoding.TextUnmarshaler.
func (c *CloseTo) UnmarshalText(text []byte) error { return closeNames.Parse(c, text) }

// Ageing configures for how long the entries of a farm live. Every zero field takes
// its default; the zero Ageing is ready for [NewTimers].
type Ageing struct {
	// Idle time after which an entry is gone. Default one minute. This and the other times are at most MaxTTL.
	Idle time.Duration
	// SYN is the life of an entry that was created by a SYN until the handshake
	// completes. Default 5 seconds.
	SYN time.Duration
	// NoSYN gives such an entry the normal idle time instead. It conflicts with SYN.
	NoSYN bool
	// Linger is how long an entry stays after its session has ended, for late
	// segments, in the modes that then remove it. Default 5 seconds.
	Linger time.Duration
	// OneWayLinger is the same where only packets from the client are seen, which
	// do not tell when the server is done. Default one minute.
	OneWayLinger time.Duration
	// NoUDP says that UDP makes no entries.
	NoUDP bool
	// CloseAtAgeing says who is told when an idle TCP session is forgotten.
	CloseAtAgeing CloseTo
	// Ports are TCP services with an idle time of their own.
	Ports []PortAge
}

// PortAge is the idle time of TCP sessions with one destination port.
type PortAge struct {
	Port uint16 // the destination port, 1 to 65535
	// Age is 2 to 60 minutes.
	Age time.Duration
	// Multiplier of Age, 2 to 20; 0 is none.
	Multiplier int
}

// Timers is a compiled [Ageing]. Use [NewTimers]; it is immutable and safe for
// concurrent use.
type Timers struct {
	cfg   Ageing
	ports map[uint16]time.Duration
}

// NewTimers compiles an Ageing; nil means all defaults. The error joins one error
// for each fault, each wrapping [ErrInvalid].
func NewTimers(cfg *Ageing) (*Timers, error) {
	t := new(Timers)
	if cfg != nil {
		t.cfg = *cfg
		t.cfg.Ports = nil
	}
	var errs []error
	bad := func(field string, value any, valid string) {
		errs = append(errs, fmt.Errorf("%w: %s %v: must be %s", ErrInvalid, field, value, valid))
	}
	if t.cfg.NoSYN && t.cfg.SYN != 0 {
		bad("SYN", t.cfg.SYN, "0 with NoSYN")
	}
	for _, f := range []struct {
		name string
		d    *time.Duration
		def  time.Duration
	}{
		{"Idle", &t.cfg.Idle, DefaultTTL}, {"SYN", &t.cfg.SYN, DefaultSYN},
		{"Linger", &t.cfg.Linger, DefaultLinger}, {"OneWayLinger", &t.cfg.OneWayLinger, DefaultOneWayLinger},
	} {
		if *f.d == 0 {
			*f.d = f.def
		} else if *f.d < 0 || *f.d > MaxTTL {
			bad(f.name, *f.d, fmt.Sprintf("positive and at most %v, or 0 for %v", MaxTTL, f.def))
		}
	}
	if t.cfg.NoSYN {
		t.cfg.SYN = t.cfg.Idle
	}
	if t.cfg.CloseAtAgeing > CloseBoth {
		bad("CloseAtAgeing", t.cfg.CloseAtAgeing, "one of "+closeNames.List())
	}
	if cfg != nil && len(cfg.Ports) > 0 {
		t.ports = make(map[uint16]time.Duration, len(cfg.Ports))
		for i, p := range cfg.Ports {
			field := fmt.Sprintf("Ports[%d]", i)
			if _, dup := t.ports[p.Port]; dup || p.Port == 0 {
				bad(field+".Port", p.Port, "1 to 65535, and given once")
			}
			if p.Age < 2*time.Minute || p.Age > time.Hour {
				bad(field+".Age", p.Age, "2 to 60 minutes")
			}
			if p.Multiplier != 0 && (p.Multiplier < 2 || p.Multiplier > 20) {
				bad(field+".Multiplier", p.Multiplier, "2 to 20, or 0 for none")
			}
			t.ports[p.Port] = p.Age * time.Duration(max(p.Multiplier, 1))
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return t, nil
}

// Tracks reports whether packets of a protocol make entries.
func (t *Timers) Tracks(proto uint8) bool { return proto != 17 || !t.cfg.NoUDP }

// CloseAtAgeing returns who is told when an idle TCP session is forgotten.
func (t *Timers) CloseAtAgeing() CloseTo { return t.cfg.CloseAtAgeing }

// Life returns the life of an entry in use: of a session of any protocol but TCP,
// of an association, or of an established TCP session with a destination port.
func (t *Timers) Life(proto uint8, port uint16) Life {
	l := Life{TTL: t.cfg.Idle}
	if proto == 6 && t.ports != nil {
		if age, ok := t.ports[port]; ok {
			l.TTL = age
		}
	}
	return l
}

// TCP returns the life of the entry of a TCP session with a destination port, in
// the state it is in. In the modes that do not remove it, an ended session ages out
// like any other, but yields to new ones when the table is full.
func (t *Timers) TCP(s TCPState, port uint16, mode Mode) Life {
	switch {
	case s.HalfOpen():
		l := Life{TTL: t.cfg.SYN, Class: HalfOpen}
		if t.cfg.NoSYN {
			l.TTL = t.Life(6, port).TTL
		}
		return l
	case s.Ended():
		l := t.Life(6, port)
		l.Class = Lingering
		switch {
		case s.OneWay():
			// Packets from the client are no proof that the server is done: the
			// entry lives on for a while whatever the mode, and ends then.
			l.TTL = t.cfg.OneWayLinger
		case mode.RemoveOnEnd():
			l.TTL = t.cfg.Linger
			// Late segments must not keep it for ever.
			l.Fixed = true
		}
		return l
	}
	return t.Life(6, port)
}
