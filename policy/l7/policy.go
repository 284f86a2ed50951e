package l7

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

const (
	// DefaultBudget is the default of Config.Budget.
	DefaultBudget = 3584
	// MaxBudget is the largest Config.Budget.
	MaxBudget = 65535
)

// Config holds the options of a Policy. A nil Config and zero fields mean the defaults.
type Config struct {
	// Default is done when no row matches or the budget is used up. The default is
	// to drop. It cannot be the action Default.
	Default Action
	// Budget is how many bytes of a request are looked at, 1 to 65535. The default is
	// 3584.
	Budget int
	// Mode is which requests of a connection a Stream classifies. The default is
	// First.
	Mode Mode
	// Normalize compares paths in the form most servers use them in: percent-encoded bytes
	// decoded, dot segments and double slashes resolved. What is forwarded does not
	// change. The default is to compare paths as they come.
	Normalize bool
	// Early decides as soon as the rows allow, not only at the end of the head. A Stream
	// still lets nothing of a head pass before all of it was judged. The default is to
	// wait for the whole head.
	Early bool
}

// Input is what is known of a connection besides its bytes. The zero Input is a
// connection without TLS.
type Input struct {
	// TLS says that the client speaks TLS and its bytes are not readable: methods that look at HTTP
	// do not match, and no bytes are needed. After TLS was terminated, leave it out
	// and keep the names.
	TLS        bool
	ServerName string   // that the client asked for, if any
	ALPN       []string // that the client offers, if any
}

// Decision is what classification has come to.
type Decision struct {
	Verdict Verdict // whether there is an Action
	// Action is what to do, unless the verdict is NeedMore. Refused requests are dropped.
	Action Action
	Rule   *Rule // that decided, or nil; it must not be changed
	Err    error // why it was refused: wraps ErrMalformed or ErrNotHTTP
}

// Policy is an immutable list of rules, compiled. It is safe for concurrent use. The
// zero Policy has no rules and drops everything.
type Policy struct {
	cfg   Config
	rules []Rule
	rows  []row

	http bool // some row looks at HTTP
}

type row struct {
	first, second method
	action        Action
}

// method is a Method ready for use.
type method struct {
	kind Kind
	in   Part
	key  string
	glob glob // of the value; of the host for URL
	path glob // for URL: of path and query
	text string
	re   *regexp.Regexp
}

// Compile builds a policy of rules, which may come in any order. It returns every fault,
// joined; those of rules are of type [*RuleError] and wrap [ErrInvalid].
func Compile(cfg *Config, rules ...Rule) (*Policy, error) {
	p := &Policy{rules: slices.Clone(rules)}
	if cfg != nil {
		p.cfg = *cfg
	}
	errs := p.cfg.complete()
	fault := func(i int, field string, err error) {
		if err != nil {
			r := rules[i]
			errs = append(errs, &RuleError{Name: r.Name, Row: r.Index, At: i, Field: field, Err: err})
		}
	}
	seen := make(map[int]int)
	for i, r := range rules {
		if j, ok := seen[r.Index]; ok {
			fault(i, "index", fmt.Errorf("%w: index %d is that of rule %q (#%d); want one of its own", ErrInvalid, r.Index, rules[j].Name, j))
		} else {
			seen[r.Index] = i
		}
		_, err := r.First.compile()
		fault(i, "first", err)
		_, err = r.Second.compile()
		fault(i, "second", err)
		fault(i, "action", r.Action.Validate())
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	slices.SortFunc(p.rules, func(a, b Rule) int { return cmp.Compare(a.Index, b.Index) })
	for _, r := range p.rules {
		first, _ := r.First.compile()
		second, _ := r.Second.compile()
		w := row{first, second, r.Action}
		if r.Action.Do == Default {
			w.action = p.cfg.Default
		}
		p.rows = append(p.rows, w)
		for _, m := range []method{first, second} {
			p.http = p.http || m.kind != Always && m.kind != ServerName && m.kind != ALPN
		}
	}
	return p, nil
}

// complete fills in defaults and returns the faults.
func (c *Config) complete() (errs []error) {
	if c.Budget == 0 {
		c.Budget = DefaultBudget
	}
	if c.Budget < 1 || c.Budget > MaxBudget {
		errs = append(errs, fmt.Errorf("%w: Budget %d: want 1 to %d", ErrInvalid, c.Budget, MaxBudget))
	}
	if int(c.Mode) >= modeNames.Len() {
		errs = append(errs, fmt.Errorf("%w: Mode %v: want first, overwrite or maintain", ErrInvalid, c.Mode))
	}
	if err := c.Default.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("option Default: %w", err))
	}
	if c.Default.Do == Default {
		errs = append(errs, fmt.Errorf("%w: option Default: action default: cannot be its own default", ErrInvalid))
	}
	return errs
}

// Config returns the options with defaults filled in.
func (p *Policy) Config() Config {
	c := p.cfg
	_ = c.complete() // was checked; the zero Policy has defaults only
	return c
}

// Rules returns a copy of the rules in index order.
func (p *Policy) Rules() []Rule { return slices.Clone(p.rules) }

const wantHost = "want a name or address as in a Host field: ASCII (xn--…), without port, IPv6 in brackets"

// possibleHost reports whether text can be part of what hosts are compared as: a value that
// never matches anything is a mistake.
func possibleHost(text string) bool {
	for i, c := range []byte(text) {
		switch {
		case c == ':' && (text[0] == '[' || text[len(text)-1] == ']') && !strings.Contains(text, "]:"):
		case c == '[' && i == 0, c == ']' && i == len(text)-1:
		case c == ':', !isHostByte(c):
			return false
		}
	}
	return true
}

func (m Method) compile() (method, error) {
	c := method{kind: m.Kind, in: m.In, key: m.Key, text: m.Value}
	bad := func(field, value, want string) error {
		return fmt.Errorf("%w: %v: %s %q: %s", ErrInvalid, m.Kind, field, value, want)
	}
	var errs []error
	if int(m.Kind) >= kindNames.Len() {
		return c, fmt.Errorf("%w: kind %v: want one of %s", ErrInvalid, m.Kind, kindNames.List())
	}
	if int(m.In) >= partNames.Len() || m.In != InHead && m.Kind != Text && m.Kind != Regexp {
		errs = append(errs, bad("in", m.In.String(), "want head, body or both with text and regexp, and none otherwise"))
	}
	hasKey := m.Kind == Header || m.Kind == Cookie
	if hasKey != (m.Key != "") || hasKey && !allToken([]byte(m.Key)) {
		errs = append(errs, bad("key", m.Key, "want a name with header and cookie, and none otherwise"))
	}
	if (m.Kind == Always) != (m.Value == "") && !hasKey {
		errs = append(errs, bad("value", m.Value, "want one, except with always"))
	}
	switch m.Kind {
	case Host, ServerName:
		c.glob = newGlob(strings.TrimSuffix(m.Value, "."), true)
		if !possibleHost(c.glob.text) {
			errs = append(errs, bad("value", m.Value, wantHost))
		}
	case PathPrefix, PathExact:
		if !strings.HasPrefix(m.Value, "/") && m.Value != "*" {
			errs = append(errs, bad("value", m.Value, "want a path that begins with a slash"))
		}
	case URL:
		v := m.Value
		if i := strings.Index(v, "://"); i >= 0 {
			v = v[i+3:]
		}
		host, path, _ := strings.Cut(v, "/")
		c.glob, c.path = newGlob(strings.TrimSuffix(host, "."), true), newGlob("/"+path, false)
		if !possibleHost(c.glob.text) {
			errs = append(errs, bad("value", m.Value, wantHost))
		}
		if host == "" {
			errs = append(errs, bad("value", m.Value, "want a host and a path"))
		}
	case Header:
		c.key = strings.ToLower(m.Key)
		fallthrough
	case Cookie:
		c.glob = newGlob(cmp.Or(m.Value, "*"), false)
	case Regexp:
		re, err := regexp.Compile(m.Value)
		if err != nil {
			errs = append(errs, bad("value", m.Value, err.Error()))
		}
		c.re = re
	}
	return c, errors.Join(errs...)
}

// Classify says what is to be done with the request at the start of b, as far as there
// is. It starts anew with each call; a [Stream] goes on where it was.
func (p *Policy) Classify(in Input, b []byte) Decision {
	c := classifier{policy: p, in: in}
	return c.classify(b)
}
