package clienttable

import (
	"fmt"
	"strings"
)

// enumText, enumString and parseEnum are the text form of this package's small
// enumerations: names[i] is the name of value i, "" for a value that is none.

func enumText(b []byte, kind string, v uint8, names []string) ([]byte, error) {
	if int(v) >= len(names) || names[v] == "" {
		return b, fmt.Errorf("clienttable: %s %d is not one of %s", kind, v, enumList(names))
	}
	return append(b, names[v]...), nil
}

func enumString(kind string, v uint8, names []string) string {
	if int(v) >= len(names) || names[v] == "" {
		return fmt.Sprintf("%s(%d)", kind, v)
	}
	return names[v]
}

func parseEnum(kind string, text []byte, names []string) (uint8, error) {
	for i, n := range names {
		if n != "" && n == string(text) {
			return uint8(i), nil
		}
	}
	return 0, fmt.Errorf("clienttable: %s %q is not one of %s", kind, text, enumList(names))
}

func enumList(names []string) string {
	var known []string
	for _, n := range names {
		if n != "" {
			known = append(known, n)
		}
	}
	return strings.Join(known, ", ")
}
