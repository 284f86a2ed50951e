package policy

import (
	"fmt"
	"strconv"
	"strings"
)

func enumString(typ string, names []string, v uint8) string {
	if int(v) < len(names) {
		return names[v]
	}
	return typ + "(" + strconv.Itoa(int(v)) + ")"
}

func enumAppend(b []byte, what string, names []string, v uint8) ([]byte, error) {
	if int(v) >= len(names) {
		return b, fmt.Errorf("%w: %s %d: want 0 to %d", ErrInvalid, what, v, len(names)-1)
	}
	return append(b, names[v]...), nil
}

func enumParse(what string, names []string, text []byte) (uint8, error) {
	for i, name := range names {
		if string(text) == name {
			return uint8(i), nil
		}
	}
	return 0, fmt.Errorf("%w: %s %q: want one of %s", ErrInvalid, what, text, strings.Join(names, ", "))
}
