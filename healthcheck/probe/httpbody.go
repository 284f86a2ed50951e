package probe

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/lbprim/lbprim/healthcheck"
)

// maxHTTPBody bounds what is read of a body with its framing, which can be several
// times as long as the content.
const maxHTTPBody = 1 << 20

// hasBody reports whether a body follows (RFC 9112 section 6.3).
func (st httpStatus) hasBody(method string) bool {
	return method != http.MethodHead && st.code != http.StatusNoContent && st.code != http.StatusNotModified
}

// readHTTPBody hands the body to scan, until the body or what scan wants of it ends. A
// body that ends too early is an error, unless it is decided by then.
func readHTTPBody(r *reader, st httpStatus, scan *healthcheck.Scan) error {
	if st.chunked {
		return readChunks(r, scan)
	}
	n, ok, err := contentLength(st.contentLength)
	switch {
	case err != nil:
		return err
	case ok:
		return scanBytes(r, n, scan)
	}
	for !scan.Decided() { // up to the end of the connection
		b, err := r.readSome()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		_, _ = scan.Write(b) // never fails
	}
	return nil
}

// scanBytes hands over n bytes.
func scanBytes(r *reader, n int64, scan *healthcheck.Scan) error {
	for n > 0 && !scan.Decided() {
		b, err := r.readAtMost(int(min(n, maxHTTPBody)))
		if err != nil {
			return fmt.Errorf("%d bytes of the body missing: %w", n, &cutError{err: err})
		}
		n -= int64(len(b))
		_, _ = scan.Write(b)
	}
	return nil
}

// readChunks decodes the chunked coding (RFC 9112 section 7.1):
//
//	size in hexadecimal [; extensions] CRLF | data CRLF | … | 0 CRLF
func readChunks(r *reader, scan *healthcheck.Scan) error {
	for !scan.Decided() {
		line, err := r.readLine()
		if err != nil {
			return err
		}
		digits, _, _ := bytes.Cut(line, []byte(";"))
		size, err := strconv.ParseUint(string(bytes.TrimRight(digits, " \t")), 16, 31)
		if err != nil {
			return healthcheck.Mismatch(line, "the size of a chunk")
		}
		if size == 0 {
			return nil
		}
		for size > 0 && !scan.Decided() {
			b, err := r.readAtMost(int(size))
			if err != nil {
				return fmt.Errorf("%d bytes of a chunk missing: %w", size, &cutError{err: err})
			}
			size -= uint64(len(b))
			_, _ = scan.Write(b)
		}
		if scan.Decided() {
			return nil
		}
		if line, err = r.readLine(); err != nil {
			return err
		}
		if len(line) != 0 {
			return healthcheck.Mismatch(line, "the end of a chunk")
		}
	}
	return nil
}

// contentLength is the value of the Content-Length fields. The same number several times, in
// several fields or in a list, is that number (RFC 9110 section 8.6).
func contentLength(fields []string) (n int64, ok bool, err error) {
	for _, f := range fields {
		for v := range strings.SplitSeq(f, ",") {
			v = strings.Trim(v, " \t\r")
			m, err := strconv.ParseUint(v, 10, 63)
			if err != nil || v[0] == '+' {
				return 0, false, healthcheck.Mismatch("Content-Length: "+f, "a number")
			}
			if ok && int64(m) != n {
				return 0, false, healthcheck.Mismatch("Content-Length: "+strings.Join(fields, ", "), "one number")
			}
			n, ok = int64(m), true
		}
	}
	return n, ok, nil
}
