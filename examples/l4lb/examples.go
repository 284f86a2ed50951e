package main

import (
	"embed"
	"slices"
	"strings"

	"github.com/lbprim/lbprim/examples/internal/cli"
)

//go:embed examples/*.yaml
var exampleFiles embed.FS

func exampleNames() (names []string) {
	entries, _ := exampleFiles.ReadDir("examples")
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".yaml"))
	}
	return names
}

func exampleFile(name string) (string, error) {
	if !slices.Contains(exampleNames(), name) {
		return "", cli.Usage("%q: want one of %s", name, strings.Join(exampleNames(), ", "))
	}
	b, err := exampleFiles.ReadFile("examples/" + name + ".yaml")
	return string(b), err
}
