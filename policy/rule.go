package policy

import (
	"errors"
	"fmt"
)

var (
	// ErrInvalid is wrapped by errors about a value that no rule or packet can have.
	ErrInvalid = errors.New("policy: invalid")
	// ErrDuplicate is wrapped when two rules have the same match.
	ErrDuplicate = errors.New("policy: duplicate match")
	// ErrAmbiguous is wrapped when two rules of one rank overlap and neither contains
	// the other.
	ErrAmbiguous = errors.New("policy: ambiguous match")
	// ErrName is wrapped when a rule has no name or that of another, or when there is no rule
	// of a given name.
	ErrName = errors.New("policy: rule name")
	// ErrTooMany is wrapped when the list of faults was cut short.
	ErrTooMany = errors.New("policy: too many faults")
)

// Rule binds a value to a match under a name.
//
// Rules that a Table returns are shared and must not be changed; their matches are in
// normal form: prefixes without host bits, IPv4-mapped addresses as IPv4, ICMP on an
// IPv6 VIP as ICMPv6, ranges that hold everything as any.
type Rule[V any] struct {
	Name  string `json:"name" yaml:"name"`   // required, unique in a table
	Match Match  `json:"match" yaml:"match"` // which packets; required
	Value V      `json:"value" yaml:"value"` // what they get

	// Disabled rules are checked and listed, but match nothing, own no VIP and
	// collide with no other rule.
	Disabled bool `json:"disabled,omitempty" yaml:"disabled,omitempty"`
	// Internal rules are the system's own: they match only packets that come back
	// from a proxy, which in turn match only internal rules.
	Internal bool `json:"internal,omitempty" yaml:"internal,omitempty"`
}

// RuleError says what is wrong with a rule.
type RuleError struct {
	Name  string // of the rule
	Index int    // of the rule among the arguments; -1 if it is not one of them

	// Other is the rule it collides with, if any, and OtherIndex its index, or -1 if it is
	// not among the arguments (or there is none).
	Other      string
	OtherIndex int

	// Witness is a packet that both rules match at one rank, if they collide.
	Witness Packet

	Err error // wraps ErrInvalid, ErrName, ErrDuplicate or ErrAmbiguous
}

// Error names the rules and shows the witness.
func (e *RuleError) Error() string {
	s := fmt.Sprintf("rule %q (#%d): %v", e.Name, e.Index, e.Err)
	if e.Index < 0 {
		s = fmt.Sprintf("rule %q: %v", e.Name, e.Err)
	}
	if e.Other != "" {
		s += fmt.Sprintf(" with rule %q", e.Other)
		if e.OtherIndex >= 0 {
			s += fmt.Sprintf(" (#%d)", e.OtherIndex)
		}
	}
	if e.Witness != (Packet{}) {
		s += fmt.Sprintf("; both match %v", e.Witness)
	}
	return s
}

// Unwrap returns Err.
func (e *RuleError) Unwrap() error { return e.Err }
