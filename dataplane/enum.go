package dataplane

import (
	"fmt"
	"strings"
)

// enumText and parseEnum are the text form of this package's small enumerations: names[i]
// is the name of value i.

func enumString(kind string, v uint8, names []string) string {
	if int(v) < len(names) {
		return names[v]
	}
	return fmt.Sprintf("%s(%d)", kind, v)
}

func enumText(b []byte, kind string, v uint8, names []string) ([]byte, error) {
	if int(v) < len(names) {
		return append(b, names[v]...), nil
	}
	return b, fmt.Errorf("dataplane: %s %d is not one of %s", kind, v, strings.Join(names, ", "))
}

func parseEnum(kind string, text []byte, names []string) (uint8, error) {
	for i, n := range names {
		if n == string(text) {
			return uint8(i), nil
		}
	}
	return 0, fmt.Errorf("dataplane: %s %q is not one of %s", kind, text, strings.Join(names, ", "))
}
