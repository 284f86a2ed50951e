package l7

import (
	"bytes"
	"fmt"
)

// What heads are refused for. The errors are made once: a flood of bad requests must
// not cost allocations.
var (
	errRequestLine  = malformed("the request line is not method, target and HTTP/1.x, one space apart")
	errTarget       = malformed("the request target has no known form or a forbidden character")
	errLineEnds     = malformed("lines end in CR LF and in LF alone")
	errControl      = malformed("a control character, such as a bare CR or NUL")
	errFieldName    = malformed("a field name is empty or not a token")
	errFold         = malformed("a line begins with white space: folded fields are obsolete")
	errLength       = malformed("Content-Length is not one number")
	errLengths      = malformed("several Content-Length fields")
	errEncoding     = malformed("Transfer-Encoding is not exactly chunked, once, in HTTP/1.1")
	errFraming      = malformed("both Content-Length and Transfer-Encoding")
	errHost         = malformed("Host is missing, repeated, or no host")
	errHosts        = malformed("Host and the request target name different hosts")
	errTrickName    = malformed("a field that is Content-Length or Transfer-Encoding only to careless readers")
	errHopByHop     = malformed("Connection names Content-Length, Transfer-Encoding or Host, which a server might then take out")
	errLongHead     = malformed("the head is too long to be followed")
	errManyFields   = malformed("too many fields")
	errManyEmpty    = malformed("too many empty lines before the request")
	errConnectBody  = malformed("CONNECT with a body")
	errChunk        = malformed("a chunk's size line is wrong")
	errTrailer      = malformed("the trailer section is wrong or too long")
	errBeforeTarget = fmt.Errorf("%w: the first bytes are no method", ErrNotHTTP)
	errVersion      = fmt.Errorf("%w: the version is not HTTP/1.0 or HTTP/1.1", ErrNotHTTP)
)

func malformed(why string) error { return fmt.Errorf("%w: %s", ErrMalformed, why) }

const (
	maxFields     = 256
	maxMethod     = 64 // bytes
	maxEmptyLines = 4  // before a request; RFC 9112 section 2.2 asks to skip at least one
)

// Field is one header field: its Name, in the case in which it came, and its Value without the white space around it. The slices are
// part of the request's bytes.
type Field struct{ Name, Value []byte }

// Head is a parsed request head:
//
//	method SP target SP HTTP/1.minor CRLF
//	*( name ":" OWS value OWS CRLF )
//	CRLF
//
// as in RFC 9112 sections 2 to 3. Its slices are part of the bytes it was parsed from.
// The zero Head is no request.
type Head struct {
	Method, Target []byte  // of the request line
	Minor          uint8   // of the version
	Host           []byte  // of the target or the Host field, with port
	Path, Query    []byte  // of the target; the path of an absolute target may be empty
	Fields         []Field // in order, as they came

	// ContentLength is the length of the body, or -1 if it is Chunked.
	ContentLength int64
	Chunked       bool
	// Close says that no request follows on the connection. Upgrade says that something else
	// than HTTP/1.x follows if the server agrees: the client asks for another protocol, with
	// both fields that this takes and in HTTP/1.1, or for a tunnel.
	Close, Upgrade bool
}

// ParseHead parses the request head at the start of b and returns its length, empty
// lines before it included. It returns [ErrShort] if b may be the beginning of a head,
// [ErrNotHTTP], or an error that wraps [ErrMalformed]. It accepts lines that end in LF
// alone if all do, and refuses whatever two readers could take differently.
func ParseHead(b []byte) (h Head, n int, err error) {
	var p parser
	if err := p.feed(b); err != nil {
		return Head{}, 0, err
	}
	if !p.done {
		return Head{}, 0, ErrShort
	}
	return p.head(b), p.pos, nil
}

// cut is a part of the request's bytes. Offsets survive when the caller moves the bytes to
// a larger buffer.
type cut struct{ from, to int }

func (c cut) of(b []byte) []byte { return b[c.from:c.to:c.to] }

// parser reads a head line by line as bytes arrive.
type parser struct {
	pos   int // after the last whole line
	scan  int // up to here there is no line end after pos
	start int // of the request line
	line  int // lines read, from the request line on
	empty int
	bare  bool // lines end in LF alone
	done  bool

	method, target    cut
	minor             uint8
	host, path, query cut // as in Head
	authority         bool
	fields            []field

	hosts, lengths, encodings int
	length                    int64
	chunked, close            bool
	keepAlive, upgrade        bool
	protocol                  bool // an Upgrade field names one
}

type field struct{ name, value cut }

func (p *parser) reset() { *p = parser{fields: p.fields[:0]} }

// feed reads the whole lines of b, which begins with the bytes of earlier calls.
func (p *parser) feed(b []byte) error {
	for !p.done {
		i := bytes.IndexByte(b[p.scan:], '\n')
		if i < 0 {
			p.scan = len(b)
			if p.line == 0 {
				return p.plausible(b[p.pos:])
			}
			return nil
		}
		end := p.scan + i
		line := cut{p.pos, end}
		bare := true
		if end > p.pos && b[end-1] == '\r' {
			line.to--
			bare = false
		}
		p.pos, p.scan = end+1, end+1
		if p.line == 0 && line.from == line.to {
			if p.empty++; p.empty > maxEmptyLines {
				return errManyEmpty
			}
			continue
		}
		if p.line == 0 {
			p.start, p.bare = line.from, bare
		} else if bare != p.bare {
			return errLineEnds
		}
		var err error
		switch {
		case p.line == 0:
			err = p.requestLine(b, line)
		case line.from == line.to:
			err = p.finish(b)
		default:
			err = p.fieldLine(b, line)
		}
		if err != nil {
			return err
		}
		p.line++
	}
	return nil
}

// plausible tells early that bytes without a line end are no request: something else
// must not wait for the budget.
func (p *parser) plausible(b []byte) error {
	for i, c := range b {
		switch {
		case c == ' ' && i > 0:
			return nil
		case c == '\r' && i == 0 && len(b) == 1:
			return nil
		case !isToken(c) || i == maxMethod:
			return errBeforeTarget
		}
	}
	return nil
}

func (p *parser) requestLine(b []byte, line cut) error {
	l := line.of(b)
	i := bytes.IndexByte(l, ' ')
	j := bytes.LastIndexByte(l, ' ')
	if i < 0 || i > maxMethod || !allToken(l[:i]) {
		return errBeforeTarget
	}
	if version := l[j+1:]; len(version) != 8 || string(version[:5]) != "HTTP/" || version[6] != '.' {
		return errRequestLine
	} else if version[5] != '1' || version[7] != '0' && version[7] != '1' {
		return errVersion
	} else {
		p.minor = version[7] - '0'
	}
	if j <= i+1 {
		return errRequestLine
	}
	p.method = cut{line.from, line.from + i}
	p.target = cut{line.from + i + 1, line.from + j}
	return p.splitTarget(b)
}

// splitTarget finds host, path and query, RFC 9112 section 3.2.
func (p *parser) splitTarget(b []byte) error {
	t := p.target.of(b)
	for _, c := range t {
		if c <= ' ' || c == 0x7f || c == '#' || c == '\\' || c == '"' || c == '<' || c == '>' {
			return errTarget
		}
	}
	p.path = p.target
	connect := string(p.method.of(b)) == "CONNECT"
	switch {
	case connect:
		p.host, p.path, p.authority = p.target, cut{p.target.to, p.target.to}, true
	case t[0] == '/':
	case string(t) == "*":
		if string(p.method.of(b)) != "OPTIONS" {
			return errTarget
		}
	default:
		i := bytes.Index(t, []byte("://"))
		if i < 1 || !isScheme(t[:i]) {
			return errTarget
		}
		from := p.target.from + i + 3
		to := from
		for to < p.target.to && b[to] != '/' && b[to] != '?' {
			to++
		}
		p.host, p.path, p.authority = cut{from, to}, cut{to, p.target.to}, true
	}
	if p.authority && (p.host.from == p.host.to || !validHost(p.host.of(b))) {
		return errTarget
	}
	p.query = cut{p.path.to, p.path.to}
	if i := bytes.IndexByte(p.path.of(b), '?'); i >= 0 {
		p.query.from = p.path.from + i + 1
		p.path.to = p.path.from + i
	}
	return nil
}

func (p *parser) fieldLine(b []byte, line cut) error {
	l := line.of(b)
	if l[0] == ' ' || l[0] == '\t' {
		return errFold
	}
	i := bytes.IndexByte(l, ':')
	if i < 0 || !allToken(l[:i]) {
		return errFieldName
	}
	v := cut{line.from + i + 1, line.to}
	for _, c := range v.of(b) {
		if c < ' ' && c != '\t' || c == 0x7f {
			return errControl
		}
	}
	for v.from < v.to && isSpace(b[v.from]) {
		v.from++
	}
	for v.from < v.to && isSpace(b[v.to-1]) {
		v.to--
	}
	if len(p.fields) == maxFields {
		return errManyFields
	}
	p.fields = append(p.fields, field{cut{line.from, line.from + i}, v})
	return p.framing(b, l[:i], v)
}

// framing takes note of the fields that say where the request ends and whom it is for.
func (p *parser) framing(b, name []byte, v cut) error {
	value := v.of(b)
	switch {
	case equalFold(name, "content-length"):
		n, ok := parseLength(value)
		if !ok {
			return errLength
		}
		// RFC 9110 section 8.6: repeated, even if they agree, they are to be made one or
		// refused by whom forwards them.
		if p.lengths++; p.lengths > 1 {
			return errLengths
		}
		p.length = n
	case equalFold(name, "transfer-encoding"):
		if p.encodings++; p.encodings > 1 || !equalFold(value, "chunked") || p.minor == 0 {
			return errEncoding
		}
		p.chunked = true
	case equalFold(name, "host"):
		if p.hosts++; p.hosts > 1 || !validHost(value) {
			return errHost
		}
		if !p.authority {
			p.host = v
		} else if len(value) > 0 && !sameHost(value, p.host.of(b)) {
			return errHosts
		}
	case equalFold(name, "connection"):
		for token := range bytes.SplitSeq(value, []byte(",")) {
			token = bytes.Trim(token, " \t")
			p.close = p.close || equalFold(token, "close")
			p.keepAlive = p.keepAlive || equalFold(token, "keep-alive")
			p.upgrade = p.upgrade || equalFold(token, "upgrade")
			if frames(token) {
				return errHopByHop
			}
		}
	case equalFold(name, "upgrade"):
		p.protocol = p.protocol || len(value) > 0
	case equalFold(name, "content_length"), equalFold(name, "transfer_encoding"):
		return errTrickName // as read through environment variables
	}
	return nil
}

func (p *parser) finish(b []byte) error {
	if p.hosts == 0 && p.minor > 0 {
		return errHost
	}
	if p.chunked && p.lengths > 0 {
		return errFraming
	}
	p.upgrade = p.upgrade && p.protocol && p.minor > 0 // RFC 9110 section 7.8
	if string(p.method.of(b)) == "CONNECT" {
		if p.chunked || p.length > 0 {
			return errConnectBody
		}
		p.upgrade = true
	}
	if p.minor == 0 && !p.keepAlive {
		p.close = true
	}
	p.done = true
	return nil
}

// head shows what was parsed.
func (p *parser) head(b []byte) Head {
	h := Head{
		Method: p.method.of(b), Target: p.target.of(b), Minor: p.minor,
		Host: p.host.of(b), Path: p.path.of(b), Query: p.query.of(b),
		Fields:        make([]Field, len(p.fields)),
		ContentLength: p.length, Chunked: p.chunked, Close: p.close, Upgrade: p.upgrade,
	}
	if p.chunked {
		h.ContentLength = -1
	}
	for i, f := range p.fields {
		h.Fields[i] = Field{f.name.of(b), f.value.of(b)}
	}
	return h
}

// parseLength reads digits only: no sign, no list, no space within.
func parseLength(b []byte) (n int64, ok bool) {
	if len(b) == 0 || len(b) > 18 {
		return 0, false
	}
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + int64(c-'0')
	}
	return n, true
}
