package healthcheck

import (
	"errors"
	"fmt"
	"time"

	"github.com/lbprim/lbprim/internal/enum"
)

// ErrNoMethod is wrapped by the error for an element that asks for a Layer 7
// check and does not say which. Such an element fails; it does not fall back to
// Layer 4.
var ErrNoMethod = errors.New("no Layer 7 method")

// WellKnown is a port that gets a Layer 7 check unless told otherwise.
type WellKnown struct {
	Transport Transport // TCP or UDP
	Port      uint16    // 1 to 65535
	Method    Method    // that it gets
}

// wellKnown is the table. FTP means the control port, 21: port 20 carries data.
var wellKnown = []WellKnown{
	{OverTCP, 21, FTP},
	{OverTCP, 23, TELNET},
	{OverTCP, 25, SMTP},
	{OverTCP, 80, HTTP},
	{OverTCP, 110, POP3},
	{OverTCP, 119, NNTP},
	{OverTCP, 143, IMAP4},
	{OverTCP, 389, LDAP},
	{OverTCP, 443, SSL},
	{OverTCP, 554, RTSP},
	{OverTCP, 1755, MMS},
	{OverTCP, 7070, PNM},
	{OverUDP, 53, DNS},
	{OverUDP, 1645, RADIUS},
	{OverUDP, 1812, RADIUS},
}

// WellKnownPorts returns the ports that get a Layer 7 check unless told
// otherwise. The slice is the caller's.
func WellKnownPorts() []WellKnown { return append([]WellKnown(nil), wellKnown...) }

func lookupWellKnown(t Transport, port uint16) (WellKnown, bool) {
	for _, w := range wellKnown {
		if w.Port == port && (t == AnyTransport || t == w.Transport) {
			return w, true
		}
	}
	return WellKnown{}, false
}

// Layer switches the type of a check. The zero Layer is [DefaultLayer].
type Layer uint8

const (
	// DefaultLayer: Layer 7 for a well-known port and one for which a protocol is
	// named, else Layer 4.
	DefaultLayer Layer = iota
	Layer4
	Layer7
)

var layerNames = enum.Of[Layer]("healthcheck: layer", "default", "layer4", "layer7")

// String returns the name of l.
func (l Layer) String() string { return layerNames.String(l) }

// AppendText implements [encoding.TextAppender].
func (l Layer) AppendText(b []byte) ([]byte, error) { return layerNames.Append(b, l) }

// MarshalText implements [encoding.TextMarshaler].
func (l Layer) MarshalText() ([]byte, error) { return l.AppendText(nil) }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (l *Layer) UnmarshalText(text []byte) error { return layerNames.Parse(l, text) }

// PortProfile is what is configured of a port, as far as it decides which check
// the port gets. It is a plain value.
type PortProfile struct {
	Port uint16 // 1 to 65535
	// Transport declares the port. An undeclared port is what it is well known
	// for, else UDP.
	Transport Transport
	// Layer switches a TCP port between Layer 4 and Layer 7. It has no effect on
	// a UDP port.
	Layer Layer
	// Method names the protocol of a port that is not well known, or another one
	// for a well-known port.
	Method Method
	// Element: the profile is that of an element, which does not fall back.
	Element bool
	// BasedOn is another port whose check this port's health is based on; 0: its
	// own. Well-known ports do not allow it.
	BasedOn uint16
}

// PortCheck is the check a port gets.
type PortCheck struct {
	Method    Method    // how it is checked
	Transport Transport // of the port to be checked
	Port      uint16    // the one to be checked
}

// WithDefaults returns a check with those fields set, of the ones that are zero,
// whose defaults are others for c. A plain UDP check takes silence for life, so a
// port comes up by two of them: one, and a second later, after all other ports
// being brought up had their first, another one, which meets the port unreachable
// that the first one may have brought.
func (c PortCheck) WithDefaults(to Check) Check {
	if c.Method != UDP {
		return to
	}
	if to.Rise == 0 {
		to.Rise, to.BringUpLast = 2, true
	}
	if interval := to.withDefaults().Interval; to.FastInterval == 0 {
		to.FastInterval = min(interval, time.Second)
	}
	return to
}

// Resolve returns the check that the port gets.
func (p PortProfile) Resolve() (PortCheck, error) {
	bad := func(format string, args ...any) (PortCheck, error) {
		return PortCheck{}, fmt.Errorf("healthcheck: port %d: %w", p.Port, fmt.Errorf(format, args...))
	}
	if p.Port == 0 {
		return bad("Port 0, want 1 to 65535")
	}
	if int(p.Transport) >= transportNames.Len() || int(p.Layer) >= layerNames.Len() || int(p.Method) >= numMethods {
		return bad("%v, %v, %v: want known values", p.Transport, p.Layer, p.Method)
	}
	w, known := lookupWellKnown(p.Transport, p.Port)
	if p.BasedOn != 0 && p.BasedOn != p.Port {
		if known {
			return bad("BasedOn %d, want 0: the health of a well-known port (%v) cannot be based on another", p.BasedOn, w.Method)
		}
		q := p
		q.Port, q.BasedOn = p.BasedOn, 0
		return q.Resolve()
	}
	c := PortCheck{Transport: p.Transport, Port: p.Port}
	if c.Transport == AnyTransport {
		c.Transport = OverUDP
		if known {
			c.Transport = w.Transport
		}
	}
	l7 := p.Method
	switch {
	case l7 == NoMethod:
		l7 = w.Method // NoMethod if not known
	case l7.Layer() != 7:
		return bad("Method %v, want a Layer 7 method; Layer4 switches to Layer 4", l7)
	case l7.Transport() != AnyTransport && l7.Transport() != c.Transport:
		return bad("Method %v on a port that is %v, want it declared %v", l7, c.Transport, l7.Transport())
	}
	if c.Transport == OverUDP {
		if c.Method = l7; l7 == NoMethod {
			c.Method = UDP
		}
		return c, nil
	}
	switch {
	case p.Layer == Layer4:
		c.Method = TCP
	case l7 != NoMethod:
		c.Method = l7
	case p.Layer == Layer7 && p.Element:
		return bad("%w: Layer 7 is on and no protocol is named", ErrNoMethod)
	default:
		c.Method = TCP
	}
	return c, nil
}
