package main

import (
	"embed"
	"io/fs"
	"net/http"
	"slices"
)

//go:embed page
var pageFiles embed.FS

// pagePaths are what a browser loads before it has a token: nothing in them is secret.
var pagePaths = [...]string{"/", "/page.js", "/chart.js", "/page.css", "/icon.svg"}

func isPage(r *http.Request) bool { return slices.Contains(pagePaths[:], r.URL.Path) }

// page serves the status page.
func page() http.Handler {
	files, err := fs.Sub(pageFiles, "page")
	if err != nil {
		panic(err) // the name is right
	}
	serve := http.FileServerFS(files)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isPage(r) {
			http.NotFound(w, r)
			return
		}
		serve.ServeHTTP(w, r)
	})
}
