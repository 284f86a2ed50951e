package steering

import (
	"fmt"
	"strings"
)

// enumString names value i of an enumeration, or shows its number.
func enumString(names []string, i uint8, kind string) string {
	if int(i) < len(names) {
		return names[i]
	}
	return fmt.Sprintf("%s(%d)", kind, i)
}

func enumAppend(b []byte, names []string, i uint8, kind string) ([]byte, error) {
	if int(i) >= len(names) {
		return b, fmt.Errorf("steering: %s %d: want one of 0 to %d", kind, i, len(names)-1)
	}
	return append(b, names[i]...), nil
}

func enumParse(names []string, text []byte, kind string) (uint8, error) {
	for i, name := range names {
		if name == string(text) {
			return uint8(i), nil
		}
	}
	return 0, fmt.Errorf("steering: %s %q: want one of %s", kind, text, strings.Join(names, ", "))
}
