try{var s=localStorage.getItem("overlapscope-theme");if(s==="dark"||s==="light")document.documentElement.style.colorScheme=s}catch(e){}
