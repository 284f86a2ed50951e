package probe

import (
	"bytes"

	"github.com/lbprim/lbprim/healthcheck"
)

// headScan finds the final status in an answer of HTTP that comes in pieces, as
// readHTTPStatus does in one that can be waited for.
type headScan struct {
	left    int    // bytes that may still come
	line    []byte // what there is of a line
	last    []byte // the last whole line, for errors
	status  []byte // the status line
	code    int
	inside  bool // the status line has been
	interim int  // informational answers so far
}

func (h *headScan) reset(limit int) {
	*h = headScan{left: limit, line: h.line[:0], last: h.last[:0], status: h.status[:0]}
}

// feed takes in a piece. done: the head of the final answer is complete.
func (h *headScan) feed(b []byte) (done bool, err error) {
	for len(b) > 0 {
		n := bytes.IndexByte(b, '\n') + 1
		whole := n > 0
		if !whole {
			n = len(b)
		}
		if n > h.left {
			return false, tooLong(h.last)
		}
		h.left -= n
		h.line = append(h.line, b[:n]...)
		if !whole {
			return false, nil
		}
		b = b[n:]
		l := bytes.TrimSuffix(h.line[:len(h.line)-1], []byte("\r"))
		h.last = append(h.last[:0], l...)
		h.line = h.line[:0]
		if done, err := h.next(h.last); done || err != nil {
			return done, err
		}
	}
	return false, nil
}

// next takes in a line.
func (h *headScan) next(l []byte) (done bool, err error) {
	const protocol = "HTTP/"
	if !h.inside {
		h.status = append(h.status[:0], l...)
		if h.code, h.inside = parseStatusLine(l, protocol); !h.inside {
			return false, noStatusLine(l, protocol)
		}
		return false, nil
	}
	if len(l) > 0 {
		return false, nil
	}
	h.inside = false
	if h.code >= 200 {
		return true, nil
	}
	if h.code == 101 {
		return false, errSwitched(string(h.status))
	}
	if h.interim++; h.interim == maxInterim {
		return false, errNoFinal(l)
	}
	return false, nil
}

// cut is the error of an answer that ended too early.
func (h *headScan) cut(err error) error {
	seen := h.line
	if len(seen) == 0 {
		seen = h.last
	}
	return &cutError{seen: string(seen), err: err}
}

func noStatusLine(l []byte, protocol string) error {
	return healthcheck.Mismatch(l, "a status line such as "+protocol+"1.1 200 OK")
}

func errSwitched(status string) error {
	return healthcheck.Mismatch(status, "no change of protocol, as none was asked for")
}

func errNoFinal(last []byte) error {
	return healthcheck.Mismatch(last, "a final status after at most 16 informational ones")
}
