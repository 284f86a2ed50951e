package l7

import "bytes"

const (
	maxChunkLine = 256
	maxTrailers  = 8192
)

// chunker follows a chunked body, RFC 9112 section 7.1:
//
//	*( size [ ;extensions ] CRLF data CRLF ) 0 [ ;extensions ] CRLF *( field CRLF ) CRLF
//
// Lines must end in CR LF, whatever the head does: lenient chunk lines are a known way
// to smuggle requests.
type chunker struct {
	state   chunkState
	left    int64 // of the chunk's data
	trailer int   // bytes of trailers
}

type chunkState uint8

const (
	chunkSize chunkState = iota
	chunkData
	chunkEnd
	chunkTrailer
	chunkDone
)

// step consumes the next piece at the start of b: n is its length, 0 if more bytes are
// needed; data says that it is part of the body.
func (c *chunker) step(b []byte) (n int, data bool, err error) {
	switch c.state {
	case chunkData:
		n = int(min(int64(len(b)), c.left))
		if c.left -= int64(n); c.left == 0 {
			c.state = chunkEnd
		}
		return n, true, nil
	case chunkEnd:
		if len(b) > 0 && b[0] != '\r' || len(b) > 1 && b[1] != '\n' {
			return 0, false, errChunk
		}
		if len(b) < 2 {
			return 0, false, nil
		}
		c.state = chunkSize
		return 2, false, nil
	case chunkSize:
		line, n, err := chunkLine(b, maxChunkLine, errChunk)
		if n == 0 {
			return 0, false, err
		}
		size, ok := parseChunkSize(line)
		if !ok {
			return 0, false, errChunk
		}
		if c.left, c.state = size, chunkData; size == 0 {
			c.state = chunkTrailer
		}
		return n, false, nil
	case chunkTrailer:
		line, n, err := chunkLine(b, maxTrailers-c.trailer, errTrailer)
		if n == 0 {
			return 0, false, err
		}
		c.trailer += n
		if len(line) == 0 {
			c.state = chunkDone
		} else if i := bytes.IndexByte(line, ':'); i < 0 || !allToken(line[:i]) || frames(line[:i]) {
			return 0, false, errTrailer
		}
		return n, false, nil
	}
	return 0, false, nil
}

// frames reports whether a field says where a request ends or whom it is for: a trailer
// must not, RFC 9110 section 6.5.1, and a reader who merges trailers would believe it. Nor must
// Connection name it, section 7.6.1.
func frames(name []byte) bool {
	return equalFold(name, "content-length") || equalFold(name, "transfer-encoding") || equalFold(name, "host")
}

// chunkLine returns the line at the start of b and its length with CR LF, or 0.
func chunkLine(b []byte, limit int, bad error) (line []byte, n int, err error) {
	i := bytes.IndexByte(b, '\n')
	if i < 0 {
		if len(b) > limit {
			return nil, 0, bad
		}
		return nil, 0, nil
	}
	if i >= limit || i == 0 || b[i-1] != '\r' {
		return nil, 0, bad
	}
	line = b[:i-1]
	for _, c := range line {
		if c < ' ' && c != '\t' || c == 0x7f {
			return nil, 0, bad
		}
	}
	return line, i + 1, nil
}

// parseChunkSize reads the hexadecimal size; extensions are ignored.
func parseChunkSize(line []byte) (n int64, ok bool) {
	if i := bytes.IndexByte(line, ';'); i >= 0 {
		line = line[:i]
	}
	line = bytes.TrimRight(line, " \t")
	if len(line) == 0 || len(line) > 15 {
		return 0, false
	}
	for _, c := range line {
		if !isHex(c) {
			return 0, false
		}
		n = n<<4 | int64(unhex(c))
	}
	return n, true
}
