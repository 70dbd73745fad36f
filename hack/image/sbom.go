package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx"
	"github.com/spdx/tools-golang/spdx/v2/common"
	"github.com/spdx/tools-golang/spdx/v2/v2_3"
)

// source is where the program comes from.
const source = "https://github.com/kube-nftproxy/kube-nftproxy"

// bom lists the components of a program as an SPDX 2.3 document: of the two usual formats the one that is an ISO standard,
// that says with every package which license it has, and that registries and scanners read.
func (p *program) bom(created time.Time) ([]byte, error) {
	main := p.components[0]
	digest := fmt.Sprintf("%x", sha256.Sum256(p.content))
	doc := &v2_3.Document{
		SPDXVersion:    v2_3.Version,
		DataLicense:    v2_3.DataLicense,
		SPDXIdentifier: "DOCUMENT",
		DocumentName:   fmt.Sprintf("kube-nftproxy %s linux/%s", main.version, p.arch),
		// It has to differ from that of any other document; a random one, as is usual, would make every image a new one.
		DocumentNamespace: fmt.Sprintf("%s/spdx/%s", source, digest),
		CreationInfo: &v2_3.CreationInfo{
			Creators: []common.Creator{{CreatorType: "Tool", Creator: "kube-nftproxy-hack-image-" + main.version}},
			Created:  created.Format(time.RFC3339),
		},
	}
	for i, c := range p.components {
		pkg, err := c.spdx()
		if err != nil {
			return nil, fmt.Errorf("describe %s: %w", c.path, err)
		}
		doc.Packages = append(doc.Packages, pkg)
		if i > 0 {
			doc.Relationships = append(doc.Relationships, relationship(doc.Packages[0].PackageSPDXIdentifier, "DEPENDS_ON", pkg.PackageSPDXIdentifier))
		}
	}
	first := doc.Packages[0]
	first.PrimaryPackagePurpose = "APPLICATION"
	first.PackageFileName = programFile
	first.PackageChecksums = []common.Checksum{{Algorithm: common.SHA256, Value: digest}}
	doc.Relationships = append([]*v2_3.Relationship{relationship("DOCUMENT", "DESCRIBES", first.PackageSPDXIdentifier)}, doc.Relationships...)
	var b bytes.Buffer
	err := spdxjson.Write(doc, &b, spdxjson.Indent(" "), spdxjson.EscapeHTML(false))
	return b.Bytes(), err
}

// writeDocuments writes the SBOM and the notices of each program into the folder for them, if there is one.
func (s settings) writeDocuments(programs []*program) error {
	if s.documents == "" {
		return nil
	}
	for _, p := range programs {
		bom, err := p.bom(s.created)
		if err != nil {
			return err
		}
		name := filepath.Join(s.documents, "kube-nftproxy-linux-"+p.arch)
		for suffix, content := range map[string][]byte{".spdx.json": bom, ".notices.txt": p.notices()} {
			if err := os.WriteFile(name+suffix, content, 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// notID matches what an identifier of SPDX may not contain.
var notID = regexp.MustCompile(`[^A-Za-z0-9.]+`)

func (c component) spdx() (*v2_3.Package, error) {
	license := expression(licenses(c.texts))
	pkg := &v2_3.Package{
		PackageName:               c.path,
		PackageSPDXIdentifier:     common.ElementID("Package-" + notID.ReplaceAllString(c.path, "-")),
		PackageVersion:            c.version,
		PackageSupplier:           &common.Supplier{Supplier: "NOASSERTION"},
		PackageDownloadLocation:   "NOASSERTION",
		IsFilesAnalyzedTagPresent: true,
		PackageLicenseConcluded:   license,
		PackageLicenseDeclared:    license,
		PackageCopyrightText:      "NOASSERTION",
		PackageExternalReferences: []*v2_3.PackageExternalReference{
			{Category: spdx.CategoryPackageManager, RefType: spdx.PackageManagerPURL, Locator: c.purl()},
		},
	}
	if c.sum == "" {
		return pkg, nil
	}
	hash, ok := strings.CutPrefix(c.sum, "h1:")
	digest, err := base64.StdEncoding.DecodeString(hash)
	if !ok || err != nil || len(digest) != sha256.Size {
		return nil, fmt.Errorf("read checksum %q: it isn't h1: and a SHA-256", c.sum)
	}
	pkg.PackageSourceInfo = "go.sum: " + c.sum
	pkg.PackageChecksums = []common.Checksum{{Algorithm: common.SHA256, Value: fmt.Sprintf("%x", digest)}}
	return pkg, nil
}

// purl is the component's name among the packages of all languages.
func (c component) purl() string {
	return "pkg:golang/" + strings.ToLower(c.path) + "@" + strings.ReplaceAll(c.version, "+", "%2B")
}

func relationship(from common.ElementID, kind string, to common.ElementID) *v2_3.Relationship {
	return &v2_3.Relationship{
		RefA: common.MakeDocElementID("", string(from)), Relationship: kind, RefB: common.MakeDocElementID("", string(to)),
	}
}
