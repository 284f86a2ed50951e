package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/lbprim/lbprim/steering"
)

// wishes are what was asked of nodes over the admin interface, by the node's full name. A wish holds over reloads and restarts, until the
// file says something new about the node.
type wishes map[string]wish

type wish struct {
	Want steering.AdminState `json:"want"`
	File steering.AdminState `json:"file"` // what the file said when it was asked
}

// admin is what holds for a node of which the file says admin.
func (w wishes) admin(node string, admin steering.AdminState) steering.AdminState {
	if x, ok := w[node]; ok && x.File == admin {
		return x.Want
	}
	return admin
}

// prune forgets wishes about nodes that are gone or of which the file says something new.
func (w wishes) prune(c *config) {
	said := map[string]steering.AdminState{}
	for name, fm := range c.Farms {
		for _, n := range fm.Nodes {
			said[nodeName(name, n.Name)] = n.Admin
		}
	}
	for node, x := range w {
		if admin, ok := said[node]; !ok || admin != x.File {
			delete(w, node)
		}
	}
}

// find finds a node by its full name, or by its own if only one farm has such a node.
func (c *config) find(name string) (farm string, n *node, err error) {
	var all []nodePath
	var nodes []*node
	for _, fname := range slices.Sorted(maps.Keys(c.Farms)) {
		for _, x := range c.Farms[fname].Nodes {
			all, nodes = append(all, nodePath{fname, x.Name}), append(nodes, x)
		}
	}
	i, err := findNode(name, all)
	if err != nil {
		return "", nil, err
	}
	return all[i].farm, nodes[i], nil
}

type nodePath struct{ farm, node string }

// findNode finds one of all by its full name, or by its own if only one farm has it. The error says which there are.
func findNode(name string, all []nodePath) (at int, err error) {
	var found, names []string
	for i, p := range all {
		full := nodeName(p.farm, p.node)
		if full == name {
			return i, nil
		}
		names = append(names, full)
		if p.node == name {
			at, found = i, append(found, full)
		}
	}
	const most = 20
	switch {
	case len(found) == 1:
		return at, nil
	case len(found) > 1:
		return 0, badRequest("several farms have a node %q: want one of %s", name, strings.Join(found, ", "))
	case len(names) > most:
		return 0, fmt.Errorf("%w %q: want one of %s and %d more, which l4lb status shows", errNoNode, name, strings.Join(names[:most], ", "), len(names)-most)
	}
	return 0, fmt.Errorf("%w %q: want one of %s", errNoNode, name, strings.Join(names, ", "))
}

// adminState is what an operator can want of a node.
type adminState = steering.AdminState
