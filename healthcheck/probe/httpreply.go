package probe

import "bytes"

// maxInterim bounds how many informational answers are skipped.
const maxInterim = 16

// httpStatus is the head of an answer.
type httpStatus struct {
	code          int
	line          string   // the status line
	contentLength []string // values of the fields, in order
	chunked       bool
}

// readHTTPStatus reads heads of answers up to the first that is not informational. The
// protocol is "HTTP/" or "RTSP/".
func readHTTPStatus(r *reader, protocol string) (httpStatus, error) {
	for range maxInterim {
		st, err := readHTTPHead(r, protocol)
		if err != nil || st.code >= 200 {
			return st, err
		}
		if st.code == 101 {
			return st, errSwitched(st.line)
		}
	}
	return httpStatus{}, errNoFinal(r.last)
}

func readHTTPHead(r *reader, protocol string) (httpStatus, error) {
	line, err := r.readLine()
	if err != nil {
		return httpStatus{}, err
	}
	st := httpStatus{line: string(line)}
	var ok bool
	if st.code, ok = parseStatusLine(line, protocol); !ok {
		return st, noStatusLine(line, protocol)
	}
	for {
		line, err := r.readLine()
		if err != nil {
			return st, err
		}
		if len(line) == 0 {
			return st, nil
		}
		// Lines that are no fields, and folded ones, are of no interest.
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.Trim(value, " \t")
		switch {
		case bytes.EqualFold(name, []byte("Content-Length")):
			st.contentLength = append(st.contentLength, string(value))
		case bytes.EqualFold(name, []byte("Transfer-Encoding")):
			// The last coding of the last field is the outermost.
			st.chunked = bytes.EqualFold(bytes.Trim(value[bytes.LastIndexByte(value, ',')+1:], " \t"), []byte("chunked"))
		}
	}
}

// parseStatusLine parses a status line (RFC 9112 section 4): the protocol with a
// version of two numbers, one blank, three digits, and nothing or a blank and a reason.
//
//	HTTP/1.1 200 OK
func parseStatusLine(line []byte, protocol string) (code int, ok bool) {
	rest, ok := bytes.CutPrefix(line, []byte(protocol))
	if !ok {
		return 0, false
	}
	version, rest, ok := bytes.Cut(rest, []byte(" "))
	if !ok || len(version) != 3 || !isDigit(version[0]) || version[1] != '.' || !isDigit(version[2]) {
		return 0, false
	}
	if len(rest) < 3 || len(rest) > 3 && rest[3] != ' ' {
		return 0, false
	}
	for _, c := range rest[:3] {
		if !isDigit(c) {
			return 0, false
		}
		code = code*10 + int(c-'0')
	}
	return code, code >= 100
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }
