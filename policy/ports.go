package policy

import (
	"fmt"
	"strconv"
	"strings"
)

// PortRange is an inclusive range of destination ports, from First to Last. The zero PortRange matches any
// port, and packets of protocols that have none. PortRanges are comparable.
type PortRange struct{ First, Last uint16 }

// Port returns the range of one port. Port(0) is the range of any port.
func Port(port uint16) PortRange { return PortRange{port, port} }

// IsAny reports whether r matches every packet.
func (r PortRange) IsAny() bool { return r == PortRange{} }

// IsValid reports whether r is any port or begins no later than it ends.
func (r PortRange) IsValid() bool { return r.First <= r.Last }

// Contains reports whether port is in r.
func (r PortRange) Contains(port uint16) bool {
	return r.IsAny() || r.First <= port && port <= r.Last
}

// width orders ranges from narrow to wide, any port last.
func (r PortRange) width() int {
	if r.IsAny() {
		return 1 << 16
	}
	return int(r.Last) - int(r.First)
}

// ParsePortRange reads "any", one port ("80") or a range ("8000-8080").
func ParsePortRange(s string) (PortRange, error) {
	if strings.EqualFold(s, "any") {
		return PortRange{}, nil
	}
	first, last, isRange := strings.Cut(s, "-")
	if !isRange {
		last = first
	}
	f, err1 := strconv.ParseUint(first, 10, 16)
	l, err2 := strconv.ParseUint(last, 10, 16)
	r := PortRange{uint16(f), uint16(l)}
	if err1 != nil || err2 != nil || !r.IsValid() || isRange && r.IsAny() {
		return PortRange{}, fmt.Errorf("%w: ports %q: want any, a port like 80, or a range like 8000-8080, from 0 to 65535", ErrInvalid, s)
	}
	return r, nil
}

// String returns the form that [ParsePortRange] reads.
func (r PortRange) String() string {
	switch {
	case r.IsAny():
		return "any"
	case r.First == r.Last:
		return strconv.Itoa(int(r.First))
	}
	return strconv.Itoa(int(r.First)) + "-" + strconv.Itoa(int(r.Last))
}

// AppendText implements encoding.TextAppender.
func (r PortRange) AppendText(b []byte) ([]byte, error) {
	if !r.IsValid() {
		return b, fmt.Errorf("%w: ports %v: the first is after the last", ErrInvalid, r)
	}
	return append(b, r.String()...), nil
}

// MarshalText implements encoding.TextMarshaler.
func (r PortRange) MarshalText() ([]byte, error) { return r.AppendText(nil) }

// UnmarshalText implements encoding.TextUnmarshaler; see [ParsePortRange].
func (r *PortRange) UnmarshalText(text []byte) (err error) {
	*r, err = ParsePortRange(string(text))
	return err
}

// UnmarshalJSON reads a string as [ParsePortRange] does, and a plain number.
func (r *PortRange) UnmarshalJSON(b []byte) error {
	if len(b) >= 2 && b[0] == '"' && b[len(b)-1] == '"' {
		b = b[1 : len(b)-1]
	} else if string(b) == "null" {
		return nil
	}
	return r.UnmarshalText(b)
}
