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
	var found, all []string
	for _, fname := range slices.Sorted(maps.Keys(c.Farms)) {
		for _, x := range c.Farms[fname].Nodes {
			full := nodeName(fname, x.Name)
			if full == name {
				return fname, x, nil
			}
			all = append(all, full)
			if x.Name == name {
				farm, n, found = fname, x, append(found, full)
			}
		}
	}
	if len(found) == 1 {
		return farm, n, nil
	}
	return "", nil, noNode(name, found, all)
}

// noNode says that a name is no node's, or that of several, and which there are.
func noNode(name string, found, all []string) error {
	if len(found) > 0 {
		return badRequest("several farms have a node %q: want one of %s", name, strings.Join(found, ", "))
	}
	const most = 20
	if len(all) > most {
		return fmt.Errorf("%w %q: want one of %s and %d more, which l4lb status shows", errNoNode, name, strings.Join(all[:most], ", "), len(all)-most)
	}
	return fmt.Errorf("%w %q: want one of %s", errNoNode, name, strings.Join(all, ", "))
}

// adminState is what an operator can want of a node.
type adminState = steering.AdminState
