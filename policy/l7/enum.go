package l7

import "github.com/lbprim/lbprim/internal/enum"

// Kind is what a method looks at.
type Kind uint8

const (
	// Always matches everything: an absent method. The zero Kind.
	Always Kind = iota
	// Host compares the request's host, without port and in any case: "www.example.com" or
	// "*.example.com", see [Method] for wildcards.
	Host
	// PathPrefix matches paths that begin with the value, as in "/images/".
	PathPrefix
	// PathExact matches one path.
	PathExact
	// PathSuffix matches paths that end with the value, as in ".jpg": a file type.
	PathSuffix
	// URL compares host, path and query, as in "www.example.com/find?q=*". A scheme before
	// them is ignored, and a port is refused: requests are compared without either.
	URL
	// Header compares the values of the field named by the key.
	Header
	// Cookie compares the values of the cookie named by the key, whose case counts.
	Cookie
	// Text searches for the value.
	Text
	// Regexp searches for the regular expression in the value (RE2 syntax, linear time).
	Regexp
	// ServerName compares the TLS server name, in any case.
	ServerName
	// ALPN matches if the TLS client offers the protocol, as in "h2".
	ALPN
)

var kindNames = enum.Wrapping[Kind](ErrInvalid, "kind", "always", "host", "path-prefix", "path", "path-suffix", "url", "header", "cookie", "text", "regexp", "server-name", "alpn")

// Part is where [Text] and [Regexp] look.
type Part uint8

const (
	// InHead is the request line and the fields. The zero Part.
	InHead Part = iota
	// InBody is the body, decoded if chunked, as far as the budget goes.
	InBody
	// InBoth is either of them.
	InBoth
)

var partNames = enum.Wrapping[Part](ErrInvalid, "part", "head", "body", "both")

// Do is what an action does.
type Do uint8

const (
	// Drop discards the connection. The zero Do.
	Drop Do = iota
	// Farm sends the traffic to a farm.
	Farm
	// Redirect answers with a redirection.
	Redirect
	// Reply answers with a status code.
	Reply
	// Default does what the policy's default action does.
	Default
)

var doNames = enum.Wrapping[Do](ErrInvalid, "action", "drop", "farm", "redirect", "reply", "default")

// Mode is which requests of a connection are classified.
type Mode uint8

const (
	// First classifies the first request; the rest of the connection follows it. The zero
	// Mode.
	First Mode = iota
	// Overwrite classifies every request; only the current server connection is kept.
	Overwrite
	// Maintain classifies every request; connections to all servers chosen are kept.
	Maintain
)

var modeNames = enum.Wrapping[Mode](ErrInvalid, "mode", "first", "overwrite", "maintain")

// Verdict is how far classification got.
type Verdict uint8

const (
	// NeedMore: more bytes of the request are needed. The zero Verdict.
	NeedMore Verdict = iota
	// Decided: a row matched.
	Decided
	// NoMatch: no row matches; the default action applies.
	NoMatch
	// BudgetUsedUp: the budget ended before a row was decided; the default action applies.
	BudgetUsedUp
	// Refused: the request is malformed or ambiguous and must not be forwarded.
	Refused
)

var verdictNames = enum.Wrapping[Verdict](ErrInvalid, "verdict", "need more", "decided", "no match", "budget used up", "refused")

// Finding is what was found about one method of a row.
type Finding uint8

const (
	// NotAsked: the row was settled without this method. The zero Finding.
	NotAsked Finding = iota
	// Fails: the method does not match.
	Fails
	// Holds: the method matches.
	Holds
	// Undecided: more bytes of the request are needed to tell. What is known once does not change
	// with more bytes.
	Undecided
)

var findingNames = enum.Wrapping[Finding](ErrInvalid, "finding", "not asked", "fails", "holds", "undecided")

// String returns the kind's name.
func (k Kind) String() string { return kindNames.String(k) }

// AppendText implements encoding.TextAppender.
func (k Kind) AppendText(b []byte) ([]byte, error) { return kindNames.Append(b, k) }

// MarshalText implements encoding.TextMarshaler.
func (k Kind) MarshalText() ([]byte, error) { return k.AppendText(nil) }

// UnmarshalText implements encoding.TextUnmarshaler.
func (k *Kind) UnmarshalText(text []byte) error { return kindNames.Parse(k, text) }

// String returns the part's name.
func (p Part) String() string { return partNames.String(p) }

// AppendText implements encoding.TextAppender.
func (p Part) AppendText(b []byte) ([]byte, error) { return partNames.Append(b, p) }

// MarshalText implements encoding.TextMarshaler.
func (p Part) MarshalText() ([]byte, error) { return p.AppendText(nil) }

// UnmarshalText implements encoding.TextUnmarshaler.
func (p *Part) UnmarshalText(text []byte) error { return partNames.Parse(p, text) }

// String returns the name of what is done.
func (d Do) String() string { return doNames.String(d) }

// AppendText implements encoding.TextAppender.
func (d Do) AppendText(b []byte) ([]byte, error) { return doNames.Append(b, d) }

// MarshalText implements encoding.TextMarshaler.
func (d Do) MarshalText() ([]byte, error) { return d.AppendText(nil) }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Do) UnmarshalText(text []byte) error { return doNames.Parse(d, text) }

// String returns the mode's name.
func (m Mode) String() string { return modeNames.String(m) }

// AppendText implements encoding.TextAppender.
func (m Mode) AppendText(b []byte) ([]byte, error) { return modeNames.Append(b, m) }

// MarshalText implements encoding.TextMarshaler.
func (m Mode) MarshalText() ([]byte, error) { return m.AppendText(nil) }

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *Mode) UnmarshalText(text []byte) error { return modeNames.Parse(m, text) }

// String returns the verdict in words.
func (v Verdict) String() string { return verdictNames.String(v) }

// AppendText implements encoding.TextAppender.
func (v Verdict) AppendText(b []byte) ([]byte, error) { return verdictNames.Append(b, v) }

// MarshalText implements encoding.TextMarshaler.
func (v Verdict) MarshalText() ([]byte, error) { return v.AppendText(nil) }

// UnmarshalText implements encoding.TextUnmarshaler.
func (v *Verdict) UnmarshalText(text []byte) error { return verdictNames.Parse(v, text) }

// String returns the finding in words.
func (f Finding) String() string { return findingNames.String(f) }

// AppendText implements encoding.TextAppender.
func (f Finding) AppendText(b []byte) ([]byte, error) { return findingNames.Append(b, f) }

// MarshalText implements encoding.TextMarshaler.
func (f Finding) MarshalText() ([]byte, error) { return f.AppendText(nil) }

// UnmarshalText implements encoding.TextUnmarshaler.
func (f *Finding) UnmarshalText(text []byte) error { return findingNames.Parse(f, text) }
