package conf

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

type named struct {
	Name   string        `yaml:"name"`
	Weight int           `yaml:"weight"`
	Wait   time.Duration `yaml:"wait" default:"2m"`
}

type forest struct {
	Trees []*named          `yaml:"trees"`
	Farms map[string]*named `yaml:"farms"`
	Words []string          `yaml:"words"`
	Level level             `yaml:"level"`
}

type level uint8

func (l level) MarshalText() ([]byte, error) { return []byte([]string{"low", "high"}[l]), nil }

func TestDiff(t *testing.T) {
	old := forest{Trees: []*named{{"a", 1, 0}, {"b", 2, time.Second}}, Farms: map[string]*named{"x": {Weight: 1}}, Words: []string{"p"}}
	require.Empty(t, Diff(old, old))
	moved := forest{Trees: []*named{old.Trees[1], old.Trees[0]}, Farms: old.Farms, Words: old.Words}
	require.Empty(t, Diff(old, moved), "the order does not matter")
	now := forest{Trees: []*named{{"b", 3, 0}, {"c", 0, 0}}, Farms: map[string]*named{"y": {}}, Words: []string{"p", "q"}, Level: 1}
	require.Equal(t, []string{
		"- farms.x", "- farms.x.weight: 1", "+ farms.y", "+ level: high",
		"- trees[a]", "- trees[a].name: a", "- trees[a].weight: 1",
		"- trees[b].wait: 1s", "~ trees[b].weight: 2 -> 3", "+ trees[c]", "+ trees[c].name: c",
		"~ words: [p] -> [p, q]",
	}, Diff(old, now))
}

func TestDefaultsWrittenOutAreNoChange(t *testing.T) {
	type file struct {
		Name string        `yaml:"name" default:"lb0"`
		Size *int          `yaml:"size" default:"5"`
		On   bool          `yaml:"on" default:"false"`
		Wait time.Duration `yaml:"wait" default:"2m"`
	}
	five, six := 5, 6
	require.Empty(t, Diff(file{}, file{"lb0", &five, false, 2 * time.Minute}))
	require.Equal(t, []string{"~ name: lb0 -> lb1", "+ on: true", "~ size: 5 -> 6", "+ wait: 1m0s"}, Diff(file{"lb0", &five, false, 0}, file{"lb1", &six, true, time.Minute}))
}
