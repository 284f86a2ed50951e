package l7

import (
	"bytes"
	"math"
)

// Replies follows what a server sends on a connection of HTTP/1.x, so that it is known when the reply to a request is
// complete. Requests are expected one at a time: the next one when the reply to the former is complete. It looks at nothing but how
// replies are framed (RFC 9112 section 6.3). The zero Replies waits for no reply; it must not be copied while in use and belongs to one
// goroutine at a time.
type Replies struct {
	state  replyState
	method replyMethod
	buf    []byte // of a head or a chunk's line that is not complete
	left   int64
	chunk  chunker
	err    error
}

type replyState uint8

const (
	noReply replyState = iota // none is expected
	replyHead
	replyBody
	replyChunks
	replyToEnd // until the server closes
	replySwitched
	replyBroken
)

type replyMethod uint8

const (
	anyMethod replyMethod = iota
	headMethod
	connectMethod
)

// maxReplyHead bounds the head of a reply.
const maxReplyHead = 1 << 16

var (
	errReplyHead  = malformed("the head of a reply")
	errUnasked    = malformed("a reply that nobody has asked for")
	errReplyChunk = malformed("a chunk of a reply")
)

// Expect says that a request with a method has been sent.
func (r *Replies) Expect(method []byte) {
	if r.state != noReply {
		return
	}
	r.state, r.method = replyHead, anyMethod
	switch string(method) {
	case "HEAD":
		r.method = headMethod
	case "CONNECT":
		r.method = connectMethod
	}
}

// Complete reports whether there is no reply to wait for: the next request may follow.
func (r *Replies) Complete() bool { return r.state == noReply }

// Switched reports whether the server has agreed to another protocol or a tunnel, by a status of 101, or 2xx to CONNECT. No
// reply follows.
func (r *Replies) Switched() bool { return r.state == replySwitched }

// Err returns why replies cannot be followed any more, or nil. No reply will be complete then.
func (r *Replies) Err() error { return r.err }

// Skippable returns how many bytes need not be looked at: of a body with a length, or up to the end of the connection.
func (r *Replies) Skippable() int64 {
	switch r.state {
	case replyBody:
		return r.left
	case replyToEnd, replySwitched, replyBroken:
		return math.MaxInt64
	}
	return 0
}

// Skip takes up to n bytes that need not be looked at, see Skippable. It returns how many these are.
func (r *Replies) Skip(n int) int {
	switch r.state {
	case replyBody:
		n = int(min(int64(n), r.left))
		r.took(n)
		return n
	case replyToEnd, replySwitched, replyBroken:
		return n
	}
	return 0
}

func (r *Replies) took(n int) {
	if r.left -= int64(n); r.left == 0 {
		r.state = noReply
	}
}

// Feed takes the next bytes of the server, in any pieces.
func (r *Replies) Feed(b []byte) {
	for len(b) > 0 {
		if n := r.Skip(len(b)); n > 0 {
			b = b[n:]
			continue
		}
		switch r.state {
		case replyHead:
			b = r.head(b)
		case replyChunks:
			b = r.chunks(b)
		default: // RFC 9112 section 9.3: it must not be taken for a reply to a later request
			r.fail(errUnasked)
		}
	}
}

func (r *Replies) fail(err error) {
	r.state, r.err, r.buf = replyBroken, err, nil
}

// whole returns b behind what is kept of it, and what to keep if that is not enough.
func (r *Replies) whole(b []byte) []byte {
	if len(r.buf) == 0 {
		return b
	}
	r.buf = append(r.buf, b...)
	return r.buf
}

func (r *Replies) keep(b []byte, limit int, err error) []byte {
	if len(b) > limit {
		r.fail(err)
		return nil
	}
	if len(r.buf) == 0 {
		r.buf = append(r.buf[:0], b...)
	} else {
		r.buf = b
	}
	return nil
}

// head reads a head, if it is complete, and returns what follows it.
func (r *Replies) head(b []byte) []byte {
	had := len(r.buf)
	all := r.whole(b)
	from := max(had-3, 0) // where its end may begin
	end := -1
	for i := from; ; {
		j := bytes.IndexByte(all[i:], '\n')
		if j < 0 {
			break
		}
		i += j + 1
		if bytes.HasPrefix(all[i:], []byte("\n")) {
			end = i + 1
			break
		}
		if bytes.HasPrefix(all[i:], []byte("\r\n")) {
			end = i + 2
			break
		}
	}
	if end < 0 {
		return r.keep(all, maxReplyHead, errReplyHead)
	}
	head := all[:end]
	rest := b[end-had:]
	status, ok := r.frame(head)
	r.buf = nil
	switch {
	case !ok:
		r.fail(errReplyHead)
		return nil
	case status == 101, r.method == connectMethod && status >= 200 && status < 300:
		r.state = replySwitched
	case status < 200:
		r.state = replyHead // an interim one: the reply follows
	case r.method == headMethod || status == 204 || status == 304:
		r.state = noReply
	case r.state == replyBody && r.left == 0:
		r.state = noReply
	}
	return rest
}

// frame reads the status line and the fields that say where the body ends.
func (r *Replies) frame(head []byte) (status int, ok bool) {
	line, fields, _ := bytes.Cut(head, []byte("\n"))
	if len(line) < 12 || string(line[:7]) != "HTTP/1." || line[8] != ' ' {
		return 0, false
	}
	for _, c := range line[9:12] {
		if c < '0' || c > '9' {
			return 0, false
		}
		status = 10*status + int(c-'0')
	}
	if status < 100 {
		return 0, false
	}
	lengths, coded, chunked := 0, false, false
	for len(fields) > 0 {
		line, fields, _ = bytes.Cut(fields, []byte("\n"))
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.Trim(value, " \t\r")
		switch {
		case equalFold(name, "content-length"):
			n, ok := parseLength(value)
			if !ok || lengths > 0 && n != r.left {
				return 0, false
			}
			r.left, lengths = n, lengths+1
		case equalFold(name, "transfer-encoding"):
			coded = true
			last := value[bytes.LastIndexByte(value, ',')+1:]
			chunked = equalFold(bytes.Trim(last, " \t"), "chunked")
		}
	}
	switch {
	case chunked:
		r.state, r.chunk = replyChunks, chunker{}
	case coded || lengths == 0:
		r.state = replyToEnd
	default:
		r.state = replyBody
	}
	return status, true
}

// chunks reads what is complete of a chunked body, and returns what follows its end.
func (r *Replies) chunks(b []byte) []byte {
	all := r.whole(b)
	for r.chunk.state != chunkDone {
		n, _, err := r.chunk.step(all)
		if err != nil {
			r.fail(errReplyChunk)
			return nil
		}
		if n == 0 {
			r.buf = append([]byte(nil), all...)
			return nil
		}
		all = all[n:]
	}
	r.state, r.buf = noReply, nil
	return b[len(b)-len(all):]
}
