package healthcheck

import (
	"fmt"
	"strings"
)

// enumText and parseEnum give the enums of this package their text form. names is
// indexed by value.
func enumText(b []byte, names []string, kind string, v uint8) ([]byte, error) {
	if int(v) >= len(names) {
		return b, fmt.Errorf("healthcheck: invalid %s %d, want 0 to %d", kind, v, len(names)-1)
	}
	return append(b, names[v]...), nil
}

func enumString(names []string, kind string, v uint8) string {
	if int(v) >= len(names) {
		return fmt.Sprintf("%s(%d)", kind, v)
	}
	return names[v]
}

func parseEnum(names []string, kind string, text []byte) (uint8, error) {
	for i, n := range names {
		if n == string(text) {
			return uint8(i), nil
		}
	}
	return 0, fmt.Errorf("healthcheck: invalid %s %q, want one of %s", kind, text, strings.Join(names, ", "))
}
