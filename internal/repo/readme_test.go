package repo

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root(), filepath.FromSlash(name)))
	require.NoError(t, err)
	return string(b)
}

// TestREADMEProgram: the program in the README is the compiled Example.
func TestREADMEProgram(t *testing.T) {
	_, program, ok := strings.Cut(read(t, "README.md"), "```go\n")
	require.True(t, ok, "README.md has no program")
	program, _, _ = strings.Cut(program, "```")
	_, example, ok := strings.Cut(read(t, "dataplane/example_test.go"), "func Example() {\n")
	require.True(t, ok)
	require.Equal(t, "func main() {\n"+example, program, "README.md shows another program than dataplane/example_test.go")
	require.LessOrEqual(t, strings.Count(program, "\n"), 40, "the README promises forty lines")
}

// TestREADMELinks: what the README and the guides link to exists.
func TestREADMELinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)
	for _, name := range []string{"README.md", "CHANGELOG.md"} {
		for _, m := range link.FindAllStringSubmatch(read(t, name), -1) {
			_, err := os.Stat(filepath.Join(root(), filepath.FromSlash(m[1])))
			require.NoErrorf(t, err, "%s links to %s", name, m[1])
		}
	}
}

// TestREADMECommands: the two commands are the ones CI runs.
func TestREADMECommands(t *testing.T) {
	readme, ci := read(t, "README.md"), read(t, ".ci/run")
	for _, command := range []string{"go run ./examples/quickstart", "go test ./..."} {
		require.Contains(t, readme, "\n"+command)
		require.Contains(t, ci, command)
	}
}
