package sslpersist

import (
	"fmt"
	"slices"
	"strings"
)

// enum has the names of the values of a small type, from 0 on.
type enum []string

func (e enum) name(v uint8) string {
	if int(v) < len(e) {
		return e[v]
	}
	return fmt.Sprintf("invalid(%d)", v)
}

func (e enum) append(b []byte, v uint8, what string) ([]byte, error) {
	if int(v) >= len(e) {
		return b, fmt.Errorf("sslpersist: %s %d: want at most %d", what, v, len(e)-1)
	}
	return append(b, e[v]...), nil
}

func (e enum) parse(v *uint8, text []byte, what string) error {
	i := slices.Index(e, string(text))
	if i < 0 {
		return fmt.Errorf("sslpersist: %s %q: want one of %s", what, text, strings.Join(e, ", "))
	}
	*v = uint8(i)
	return nil
}
