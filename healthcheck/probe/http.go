package probe

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"

	"github.com/lbprim/lbprim/healthcheck"
)

// HTTP sends one request over a fresh connection and judges the status of the final
// answer; informational answers (1xx) before it are skipped. The zero HTTP sends
// HEAD / and wants 200 to 299 or 401. It is a plain value, safe for concurrent use.
type HTTP struct {
	Dialer Dialer // nil: the system's choices
	Method string // default HEAD; with Content GET
	Path   string // origin form, as "/health?deep=1"; default "/"
	Host   string // value of the Host field; default: the target
	// Header is what else is sent. Host, Connection, Content-Length and
	// Transfer-Encoding are the prober's own.
	Header http.Header
	Body   string
	// Ranges, up to four, replace 200 to 299 and 401.
	Ranges []StatusRange
	// Content, if not nil, judges the body after the status passed; of longer ones
	// the first [healthcheck.MaxReply] bytes.
	Content *healthcheck.MatchList
	// FailFast makes a wrong status count at once instead of after the monitor's
	// retries. Silence and broken connections are still repeated.
	FailFast bool
}

// MaxStatusRanges is how many ranges of status codes an [HTTP] prober may have.
const MaxStatusRanges = 4

// StatusRange is an inclusive range of status codes from 200 to 599 (the final ones). Last
// zero means First alone. It is a plain value.
type StatusRange struct {
	First, Last int
}

func (r StatusRange) bounds() (first, last int) {
	if r.Last == 0 {
		return r.First, r.First
	}
	return r.First, r.Last
}

// Contains reports whether code is in r.
func (r StatusRange) Contains(code int) bool {
	first, last := r.bounds()
	return first <= code && code <= last
}

// String is "200-299" or "401".
func (r StatusRange) String() string {
	first, last := r.bounds()
	if first == last {
		return fmt.Sprint(first)
	}
	return fmt.Sprintf("%d-%d", first, last)
}

var defaultRanges = [...]StatusRange{{First: 200, Last: 299}, {First: 401}}

func (p HTTP) ranges() []StatusRange {
	if len(p.Ranges) > 0 {
		return p.Ranges
	}
	return defaultRanges[:]
}

func (p HTTP) accepts(code int) bool {
	for _, r := range p.ranges() {
		if r.Contains(code) {
			return true
		}
	}
	return false
}

func (p HTTP) want() string {
	var b strings.Builder
	b.WriteString("status ")
	for i, r := range p.ranges() {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(r.String())
	}
	return b.String()
}

func (p HTTP) method() string {
	switch {
	case p.Method != "":
		return p.Method
	case p.Content != nil:
		return http.MethodGet
	}
	return http.MethodHead
}

// ownFields are the header fields that the prober sets itself.
var ownFields = [...]string{"Host", "Connection", "Content-Length", "Transfer-Encoding"}

// Validate reports all faults of p.
func (p HTTP) Validate() error {
	var errs []error
	bad := func(field, got, want string) {
		errs = append(errs, fmt.Errorf("probe: HTTP.%s: got %q, want %s", field, got, want))
	}
	if !isToken(p.method()) {
		bad("Method", p.Method, "a token such as HEAD")
	}
	if p.Content != nil && p.Method == http.MethodHead {
		bad("Method", p.Method, "one that is answered with a body, as Content is set")
	}
	if p.Path != "" && (p.Path[0] != '/' && p.Path != "*" || !isVisible(p.Path)) {
		bad("Path", p.Path, `a path that begins with "/" and has no blanks or control characters`)
	}
	if !isVisible(p.Host) {
		bad("Host", p.Host, "a name without blanks or control characters")
	}
	for k, vs := range p.Header {
		for _, own := range ownFields {
			if http.CanonicalHeaderKey(k) == own {
				bad("Header", k, "no field that the prober sets itself")
			}
		}
		if !isToken(k) {
			bad("Header", k, "names that are tokens")
		}
		for _, v := range vs {
			if strings.ContainsAny(v, "\r\n\x00") {
				bad("Header", v, "values of one line")
			}
		}
	}
	if len(p.Ranges) > MaxStatusRanges {
		errs = append(errs, fmt.Errorf("probe: HTTP.Ranges: got %d ranges, want at most %d", len(p.Ranges), MaxStatusRanges))
	}
	for _, r := range p.Ranges {
		if first, last := r.bounds(); first < 200 || last > 599 || first > last {
			bad("Ranges", r.String(), "first to last within 200 to 599")
		}
	}
	return errors.Join(errs...)
}

// Probe implements [healthcheck.Prober].
func (p HTTP) Probe(ctx context.Context, target netip.AddrPort) healthcheck.Result {
	if err := p.Validate(); err != nil {
		return invalid("http", target, err)
	}
	return askOverTCP(ctx, "http", p.Dialer, target, p.limit(), p.talk)
}

// limit is how much of a reply is read.
func (p HTTP) limit() int {
	if p.Content != nil {
		return maxReply + maxHTTPBody
	}
	return maxReply
}

func (p HTTP) talk(s *stream) error {
	s.step = "request"
	if err := s.send(p.appendRequest(nil, s.target)); err != nil {
		return err
	}
	s.step = "reply"
	st, err := readHTTPStatus(s.reader, "HTTP/")
	if err != nil {
		return err
	}
	if !p.accepts(st.code) {
		s.final = p.FailFast
		return healthcheck.Mismatch(st.line, p.want())
	}
	if p.Content == nil {
		return nil
	}
	s.step = "content"
	scan := p.Content.Scan()
	if st.hasBody(p.method()) {
		if err := readHTTPBody(s.reader, st, scan); err != nil {
			return err
		}
	}
	verdict, hit := scan.Finish()
	why := p.Content.Describe(hit)
	if verdict != healthcheck.Pass {
		return fmt.Errorf("%w: %s", healthcheck.ErrMismatch, why)
	}
	s.note = why
	return nil
}

// appendRequest appends the request. Close, and no encodings, keep the answer simple.
func (p HTTP) appendRequest(b []byte, target netip.AddrPort) []byte {
	path, host := p.Path, p.Host
	if path == "" {
		path = "/"
	}
	b = append(b, p.method()...)
	b = append(append(append(b, ' '), path...), " HTTP/1.1\r\nHost: "...)
	if host != "" {
		b = append(b, host...)
	} else {
		b = appendHost(b, target)
	}
	b = append(b, "\r\nConnection: close\r\n"...)
	if !p.hasField("User-Agent") {
		b = append(b, "User-Agent: lbprim-healthcheck\r\n"...)
	}
	for k, vs := range p.Header {
		for _, v := range vs {
			b = append(append(b, k...), ": "...)
			b = append(append(b, v...), "\r\n"...)
		}
	}
	if p.Body != "" {
		b = fmt.Appendf(b, "Content-Length: %d\r\n", len(p.Body))
	}
	b = append(b, "\r\n"...)
	return append(b, p.Body...)
}

// hasField reports whether Header has a field, however its name is written.
func (p HTTP) hasField(name string) bool {
	for k := range p.Header {
		if http.CanonicalHeaderKey(k) == name {
			return true
		}
	}
	return false
}

// appendHost appends target as in a URL: a zone is not sent, as it means nothing to
// others (RFC 6874 section 4).
func appendHost(b []byte, target netip.AddrPort) []byte {
	target = netip.AddrPortFrom(target.Addr().WithZone("").Unmap(), target.Port())
	return target.AppendTo(b)
}

// isToken reports whether s is an RFC 9110 token.
func isToken(s string) bool {
	for i := range len(s) {
		c := s[i]
		letter := 'a' <= c|0x20 && c|0x20 <= 'z'
		if !letter && (c < '0' || c > '9') && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return s != ""
}

// isVisible reports whether s has no blanks and no control characters.
func isVisible(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] == 0x7f {
			return false
		}
	}
	return true
}
