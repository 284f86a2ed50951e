package l7

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

var (
	// ErrInvalid is wrapped by errors about a rule or an option.
	ErrInvalid = errors.New("l7: invalid")
	// ErrShort says that a head is not complete yet.
	ErrShort = errors.New("l7: incomplete request head")
	// ErrNotHTTP says that the bytes are not the beginning of an HTTP/1.x request.
	ErrNotHTTP = errors.New("l7: not HTTP/1.x")
	// ErrMalformed is wrapped by errors about a request that is broken or that two readers could
	// understand differently.
	ErrMalformed = errors.New("l7: malformed request")
)

// Method is one test of a rule. The zero Method matches everything.
//
// The values of Host, URL, Header, Cookie and ServerName may begin or end with a star,
// or both, which stands for any text: "*.example.com" matches every name below
// example.com and not example.com itself. Elsewhere a star is a star. Hosts are compared in
// any case, without port and without the dot of the root. An empty value of
// Header or Cookie matches any value: it asks for presence. Methods are comparable.
type Method struct {
	Kind  Kind   `json:"kind" yaml:"kind"`                       // what is looked at; the zero Kind matches always
	Key   string `json:"key,omitempty" yaml:"key,omitempty"`     // of Header (in any case) and Cookie
	Value string `json:"value,omitempty" yaml:"value,omitempty"` // to be met, by the rules of Kind
	In    Part   `json:"in,omitzero" yaml:"in,omitempty"`        // for Text and Regexp
}

// Action is what is done with a request. The zero Action drops it. Actions are
// comparable.
type Action struct {
	Do       Do     `json:"do" yaml:"do"`                                 // what; the zero Do drops
	Farm     string `json:"farm,omitempty" yaml:"farm,omitempty"`         // for Farm
	Location string `json:"location,omitempty" yaml:"location,omitempty"` // for Redirect: a URL
	Code     int    `json:"code,omitempty" yaml:"code,omitempty"`         // for Reply; for Redirect the default is 302
}

// Rule is one row of a policy. Rules are plain data and comparable.
type Rule struct {
	Index  int    `json:"index" yaml:"index"`                      // rows are tried by ascending index; unique
	Name   string `json:"name,omitempty" yaml:"name,omitempty"`    // for people and explanations; may be empty
	First  Method `json:"first" yaml:"first"`                      // must match
	Second Method `json:"second,omitzero" yaml:"second,omitempty"` // must match too
	Action Action `json:"action" yaml:"action"`                    // what is then done
}

// Validate reports what is wrong with an action; the error wraps [ErrInvalid].
func (a Action) Validate() error {
	var errs []error
	fault := func(field string, value any, want string) {
		errs = append(errs, fmt.Errorf("%w: action %v: %s %q: %s", ErrInvalid, a.Do, field, fmt.Sprint(value), want))
	}
	if int(a.Do) >= doNames.Len() {
		errs = append(errs, fmt.Errorf("%w: action %v", ErrInvalid, a.Do))
	}
	if (a.Farm != "") != (a.Do == Farm) {
		fault("farm", a.Farm, "want a name with farm, and none otherwise")
	}
	if (a.Location != "") != (a.Do == Redirect) {
		fault("location", a.Location, "want a URL with redirect, and none otherwise")
	} else if i := strings.IndexFunc(a.Location, func(r rune) bool { return r <= ' ' || r == 0x7f }); i >= 0 {
		fault("location", a.Location, "must not have spaces or control characters")
	}
	switch {
	case a.Do == Reply && (a.Code < 200 || a.Code > 599):
		fault("code", a.Code, "want a status code from 200 to 599")
	case a.Do == Redirect && a.Code != 0 && (a.Code < 301 || a.Code > 308 || a.Code == 304 || a.Code == 305 || a.Code == 306):
		fault("code", a.Code, "want 301, 302, 303, 307 or 308")
	case a.Do != Reply && a.Do != Redirect && a.Code != 0:
		fault("code", a.Code, "want none")
	}
	return errors.Join(errs...)
}

// AppendResponse appends the HTTP response with which Redirect and Reply answer a
// request; the connection is to be closed after it. It reports false for other actions.
func (a Action) AppendResponse(b []byte) ([]byte, bool) {
	code := a.Code
	switch a.Do {
	case Reply:
	case Redirect:
		if code == 0 {
			code = http.StatusFound
		}
	default:
		return b, false
	}
	b = append(b, "HTTP/1.1 "...)
	b = strconv.AppendInt(b, int64(code), 10)
	b = append(b, ' ')
	b = append(b, http.StatusText(code)...)
	if a.Do == Redirect {
		b = append(b, "\r\nLocation: "...)
		b = append(b, a.Location...)
	}
	if code != http.StatusNoContent && code != http.StatusNotModified {
		b = append(b, "\r\nContent-Length: 0"...)
	}
	return append(b, "\r\nConnection: close\r\n\r\n"...), true
}

// RuleError says which rule Compile refused, and why.
type RuleError struct {
	Name  string // of the rule, may be empty
	Row   int    // the rule's Index
	At    int    // its place among the arguments
	Field string // "first", "second", "action" or "index"
	Err   error  // what is wrong; wraps ErrInvalid
}

// Error names the rule and the field.
func (e *RuleError) Error() string {
	return fmt.Sprintf("rule %d %q (#%d): %s: %v", e.Row, e.Name, e.At, e.Field, e.Err)
}

// Unwrap returns Err.
func (e *RuleError) Unwrap() error { return e.Err }
