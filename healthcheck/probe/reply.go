package probe

import (
	"bytes"

	"github.com/lbprim/lbprim/healthcheck"
)

// readReply reads a reply that begins with a code of three digits and may have several
// lines: "220-" on the first, and the same code with a blank, or alone, on the last
// (RFC 959 section 4.2). In between anything may stand, unless strict: then every line
// begins with the code (RFC 5321 section 4.2.1). A code that is not wanted decides at
// the first line.
func readReply(r *reader, strict bool, wanted ...string) ([]byte, error) {
	line, err := r.readLine()
	if err != nil {
		return nil, err
	}
	code, more, ok := splitCode(line)
	if !ok || !contains(wanted, code) {
		return nil, healthcheck.Mismatch(line, oneOf(wanted))
	}
	text := bytes.Clone(line)
	first := string(line[:3])
	for more {
		if line, err = r.readLine(); err != nil {
			return nil, err
		}
		c, m, ok := splitCode(line)
		same := ok && string(c) == first
		if strict && !same {
			return nil, healthcheck.Mismatch(line, "every line to begin with "+first)
		}
		text = append(append(text, '\n'), line...)
		more = !same || m
	}
	return text, nil
}

// splitCode splits a line of a reply: three digits, then nothing, a blank, or a hyphen
// if more lines follow.
func splitCode(line []byte) (code []byte, more, ok bool) {
	if len(line) < 3 || !isDigit(line[0]) || !isDigit(line[1]) || !isDigit(line[2]) {
		return nil, false, false
	}
	if len(line) == 3 {
		return line, false, true
	}
	return line[:3], line[3] == '-', line[3] == '-' || line[3] == ' '
}

func contains(set []string, b []byte) bool {
	for _, s := range set {
		if s == string(b) {
			return true
		}
	}
	return false
}

// oneOf is "220" or "200 or 201".
func oneOf(set []string) string {
	var b []byte
	for i, s := range set {
		if i > 0 {
			b = append(b, " or "...)
		}
		b = append(b, s...)
	}
	return string(b)
}

// hasWord reports whether line begins with word, followed by nothing or a blank.
func hasWord(line []byte, word string) bool {
	rest, ok := bytes.CutPrefix(line, []byte(word))
	return ok && (len(rest) == 0 || rest[0] == ' ')
}
